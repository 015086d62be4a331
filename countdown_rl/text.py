"""What a model wrote, made fit to be shown."""


def plain(text: str) -> str:
    """*text* without what a terminal or a page would obey; a model may write anything."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)
