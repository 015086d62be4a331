"""``vllm serve`` on a CPU, whose distribution is not called ``vllm``."""

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main  # does not look for it in pip

    main()
