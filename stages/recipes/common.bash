# Sourced by the recipes: their arguments, and the directory they write to. Bash 3.2, as on macOS, is enough.
#
# Options may stand anywhere. --check: only check options, data, model, prompts and memory. --quick: a few steps on a
# few rows. Other arguments stay in $1, $2, ...; their number is checked against $arguments.
usage="usage: $(sed -n '/^#   .*\[--check\]/{s/^# *//p;q;}' "$0")"
check= quick=
for argument; do
  shift
  case $argument in
    --check) check=1 ;;
    --quick) quick=1 ;;
    --help) echo "$usage"; exit ;;
    -*) echo "unknown option $argument; $usage" >&2; exit 2 ;;
    *) set -- "$@" "$argument" ;;
  esac
done
[ $# -eq "$arguments" ] || { echo "$usage" >&2; exit 2; }

# Change to the directory $1 and link a local $model there, so that no manifest contains a path outside.
enter() {
  mkdir -p "$1"
  if [ -e "$model" ]; then ln -sfn "$(realpath "$model")" "$1/base" && model=base; fi
  cd "$1"
}
