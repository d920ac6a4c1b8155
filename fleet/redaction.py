"""What no line, message or traceback may show: the password of a URL, and the arguments in a row that PostgreSQL quotes."""

import re

# Where it cannot be told how far a password goes, too much is hidden rather than too little.
_PASSWORD = re.compile(
    r"""
    ( :// [^\s:/?\#\[]* : )                     # scheme://user:
    (?: [^\s/?\#]*                              # what stands before the last @ of the authority,
      | (?! \d* [/?\#] )                        # or, where that is no port with a path, before the first @:
        (?: (?! :// ) [^\s@] )* ) (?=@)         #   SQLAlchemy takes a password with a bare / in it
    | ( password [ ]* = [ ]* )                  # of libpq, and PGPASSWORD=, ?password=, sslpassword=
      (?: '(?: \\. | [^'\\\n] )*' | (?: \\. | \S )+ )
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Further lines of PostgreSQL's errors, each to its end: a row that breaks a rule, JSON that it cannot read, a line of COPY.
_QUOTED = re.compile(r"(Failing row contains |JSON data, line \d+: |COPY task, line \d+, column \w+: ).*")


def redacted(text: str) -> str:
    """Return the text with the passwords in it, and the rows that PostgreSQL quotes, hidden."""
    return _QUOTED.sub(r"\1***", _PASSWORD.sub(r"\1\2***", text))
