// The grader: the rules of countdown_rl/tasks/countdown/expression.py and countdown_rl/tasks/countdown/task.py, in exact
// fractions.
const OPERATORS = {};
for (const [operator, spellings] of [["+", "+"], ["-", "-−–"], ["*", "*x×X·⋅∗"], ["/", "/÷∕"]])
  for (const spelling of spellings) OPERATORS[spelling] = operator;
const PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2};
const NAMED = {"**": "power", "^": "power", "//": "floor-division", ".": "decimal"};

class Refused extends Error {}
const refuse = reason => { throw new Refused(reason); };
const foreign = lexeme => NAMED[lexeme] ?? "bad-character";

// A fraction is [numerator, denominator]; the denominator is positive, or 0 after a division by zero.
function combine(operator, [a, b], [p, q]) {
  if (!b || !q) return [0n, 0n];
  if (operator === "*") return [a * p, b * q];
  if (operator === "/") return p > 0n ? [a * q, b * p] : [-a * q, -b * p];
  return [operator === "+" ? a * q + p * b : a * q - p * b, b * q];
}

function evaluate(text) {
  const numbers = [], values = [], pending = [];
  const reduce = () => { const right = values.pop(); values.push(combine(pending.pop(), values.pop(), right)); };
  let operand = true, signed = false; // signed: after a leading plus
  for (const [, lexeme] of text.matchAll(/\s*([0-9]+|\*\*|\/\/|\S)/gu)) {
    const operator = OPERATORS[lexeme];
    if (operand) {
      if (/^[0-9]/.test(lexeme)) {
        if (lexeme[0] === "0" && lexeme !== "0") refuse("leading-zero");
        if (lexeme.length > 15 || numbers.length === 64) refuse("too-long");
        numbers.push(Number(lexeme));
        values.push([BigInt(lexeme), 1n]);
        operand = false;
      } else if (lexeme === "(") {
        pending.push(lexeme);
        signed = false;
      }
      else if (lexeme === ")") refuse(pending.includes("(") ? "missing-number" : "unbalanced");
      else if (!signed && PRECEDENCE[operator] === 1 && (!pending.length || pending.at(-1) === "(")) {
        signed = operator === "+";
        if (signed) continue;
        values.push([0n, 1n]); // a leading minus
        pending.push(operator);
      } else refuse(!operator ? foreign(lexeme) : PRECEDENCE[operator] === 1 ? "leading-sign" : "missing-number");
      continue;
    }
    if (!operator && lexeme !== ")")
      refuse(lexeme === "(" || /^[0-9]/.test(lexeme) ? "juxtaposition" : foreign(lexeme));
    while (pending.length && pending.at(-1) !== "(" && PRECEDENCE[pending.at(-1)] >= (PRECEDENCE[operator] ?? 1)) reduce();
    if (operator) {
      pending.push(operator);
      operand = true;
    } else if (!pending.length) refuse("unbalanced");
    else pending.pop();
  }
  if (operand) refuse(numbers.length || pending.length || signed ? "missing-number" : "empty");
  while (pending.length) pending.at(-1) === "(" ? refuse("unbalanced") : reduce();
  return {value: values[0], numbers};
}

// The content of a box in the notation of the other answers; fractions from the innermost outward.
function withoutLatex(text) {
  text = text.replace(/\\(times|cdot|div)(?![A-Za-z])/g, (_, name) => name === "div" ? " / " : " * ");
  for (let before = ""; before !== text; ) {
    before = text;
    text = text.replace(/\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}/g, (_, top, bottom) => {
      for (const part of [top, bottom]) evaluate(part); // each is an expression on its own
      return `((${top})/(${bottom}))`;
    });
  }
  return text;
}

// A solution as text, or null; items are [value, text].
function solve(items, target) {
  if (items.length === 1) return items[0][0][0] === target * items[0][0][1] ? items[0][1] : null;
  for (let i = 0; i < items.length; i++)
    for (let j = i + 1; j < items.length; j++) {
      const rest = items.filter((_, k) => k !== i && k !== j), [a, b] = [items[i], items[j]];
      for (const [operator, left, right] of [["+", a, b], ["-", a, b], ["-", b, a], ["*", a, b], ["/", a, b], ["/", b, a]]) {
        const value = combine(operator, left[0], right[0]);
        const found = value[1] ? solve([...rest, [value, `(${left[1]} ${operator} ${right[1]})`]], target) : null;
        if (found) return found;
      }
    }
  return null;
}
function solution(numbers, target) {
  if (numbers.length > 5) return null; // would take a browser too long
  const text = solve(numbers.map(number => [[BigInt(number), 1n], `${number}`]), BigInt(target));
  return text?.startsWith("(") ? text.slice(1, -1) : text;
}

// The last complete answer block after the thinking, or null.
function answerOf(text) {
  if (DIRECT) return text.trim() || null;
  const closed = text.indexOf("</think>"), start = closed >= 0 ? closed : text.includes("<think>") ? text.length : 0;
  for (let end = text.length; ; ) {
    const begin = text.slice(0, end).lastIndexOf("<answer>");
    if (begin < start) return null;
    const close = text.slice(0, end).indexOf("</answer>", begin);
    if (close >= 0) return text.slice(begin + 8, close).trim();
    end = begin;
  }
}

// The grade of an answer: its value as text or null, and the reason why it is not right, or "".
function gradeAnswer(answer, numbers, target) {
  if (["impossible", "impossible.", "impossible!", "\\boxed{impossible}"].includes(answer.toLowerCase()))
    return {value: null, reason: numbers.length > 5 || target < 1 ? "not-proved" : solution(numbers, target) ? "not-impossible" : ""};
  let value = null;
  try {
    if (answer.length > 4096) refuse("too-long");
    const text = answer.replace(/\.$/, ""), boxed = text.match(/^\s*\\boxed\s*\{(.*)\}\s*$/s);
    const [head, ...claims] = (boxed ? withoutLatex(boxed[1]) : text).split("="), expression = evaluate(head), [top, bottom] = expression.value;
    let agrees = true;
    for (const claim of claims) {
      const integer = claim.match(/^\s*([-+−–]?)\s*([0-9]{1,15})\s*$/);
      const [a, b] = integer ? [BigInt(integer[2]) * (["", "+"].includes(integer[1]) ? 1n : -1n), 1n] : evaluate(claim).value;
      agrees &&= b !== 0n && top * b === a * bottom;
    }
    if (bottom) {
      let [a, b] = [top < 0n ? -top : top, bottom];
      while (b) [a, b] = [b, a % b];
      value = bottom === a ? `${top / a}` : `${top / a}/${bottom / a}`;
    }
    const unused = [...numbers];
    let twice = false;
    for (const number of expression.numbers.sort((a, b) => a - b)) {
      const at = unused.indexOf(number);
      if (at >= 0) unused.splice(at, 1);
      else if (!numbers.includes(number)) refuse("number-not-given");
      else twice = true;
    }
    if (twice) refuse("number-used-twice");
    if (unused.length) refuse("number-left-out");
    if (!bottom) refuse("division-by-zero");
    if (!agrees) refuse("answers-disagree");
    return {value, reason: top === BigInt(target) * bottom ? "" : "wrong-value"};
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return {value, reason: error.message};
  }
}
