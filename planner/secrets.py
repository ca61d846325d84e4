"""Tokens and keys: values that must never be written."""

import re

#: Prefixes of tokens by issuer: Hugging Face, OpenAI and compatible services, GitHub, GitLab, NVIDIA, AWS, Slack,
#: Google; tokens in JSON (JWT), and keys in PEM.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|nvapi-[\w-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY)"
)
_NAME = re.compile(r"(^|[_-])(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API[_-]?KEY|ACCESS[_-]KEY)$", re.IGNORECASE)
#: Placeholders for a value: a variable of the shell, a number, a switch.
_NO_VALUE = re.compile(r"\$\w+|\$\{\w+\}|\d*|true|false", re.IGNORECASE)


def is_secret(value: str, name: str = "") -> bool:
    """True if ``value``, perhaps of a variable or an option ``name``, looks like a token or a key."""
    named = bool(_NAME.search(name)) and not _NO_VALUE.fullmatch(value)
    return named or bool(_TOKEN.search(value))


def masked(text: str) -> str:
    """Replace each token in ``text`` by three asterisks."""
    return _TOKEN.sub("***", text)
