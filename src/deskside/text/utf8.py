"""UTF-8 at the border: what is not valid text is refused, with the place of the first fault."""

from deskside.errors import InputError

__all__ = ["from_bytes", "to_bytes"]


def to_bytes(text: str, what: str) -> bytes:
    """Encode `text`, refusing lone surrogates: they come from arguments that were not UTF-8.

    Raises:
        InputError: names `what` and the position of the first bad character.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is not valid UTF-8 (character {error.start})") from error


def from_bytes(data: bytes, what: str) -> str:
    """Decode `data`.

    Raises:
        InputError: names `what` and the position of the first bad byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not valid UTF-8 (byte {error.start})") from error
