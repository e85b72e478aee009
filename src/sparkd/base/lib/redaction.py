"""Text that others can read: without known secrets in any form, without what looks like one, without prompts.

For events, reports, messages, state and `sparkd capture`. `base.lib.redactor` is for each line of the engine's log,
and leaves more in. This one may take too much out: some file's name, a word of a hint.
"""

import base64
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from sparkd.base.lib.redactor import Redactor

HIDDEN = "***"
_TOKENS = (
    r"(?:(?:hf|npm|gh[a-z]|gsk|glsa)_|AKIA|ASIA)[A-Za-z0-9]{10,}"
    r"|(?:sk-|[srp]k_(?:live|test)_|nvapi-|github_pat_|glpat-|xox[a-z]-|AIza|GOCSPX-|ya29\.|pypi-|dckr_pat_|dop_v1_|syt_"
    r"|tskey-|AGE-SECRET-KEY-|hvs\.|\d{8,10}:AA)[A-Za-z0-9_-]{10,}"
    r"|(?:SG\.[\w-]{16,40}|[MNO][A-Za-z\d]{23,27}\.[\w-]{6})\.[\w-]{20,}"
)
"""Known by their beginning or form."""
_SECRETS = r"secret|passw|passphrase|credential|(?<![a-z])(?<!not )(?:pass|pwd|psk)(?![a-z])"
"""Names whose values are secrets, and never a count."""
_NAMES = (
    rf"{_SECRETS}|api[_-]?key|access[_-]?key|private[_-]?key|(?:[a-z]_|account|license|encryption|shared)key(?![a-z_])"
    r"|client-key-data|token(?!s|iz)|(?:hf|auth|api|access)_?tokens|auth(?!or|entic)|cookie|webhook|(?<![a-z])sig(?![a-z])"
)
"""Names whose values are secrets."""
_VARIABLE = r"[A-Z\d_]{1,40}_(?:KEY|PASSWORD|SECRET|TOKEN)"
_PLAIN = (
    r"/(?:etc|home|opt|root|run|srv|var)/[\w./-]*|none|null|true|false|\*+"
    rf"|(?-i:FILE|{_VARIABLE})"
    r"|(?:(?<=: )|(?<=: \[))(?-i:Errno|No|Input|has|is|belongs|must|does|line)"
)
"""Values that are no secrets: paths, names of variables, and words by which a message continues behind the name of a
file or setting (`token: must be ...`). These words count only without a quote before them."""
_END = r"(?=[\s\"',;}\]\\`]|:\s|:?\Z)"
_HARMLESS = rf"(?:{_PLAIN}|[\d.,]{{1,7}}){_END}"
"""Values that are no secrets, counts among them."""
_NAME = rf"(?:{_NAMES})[\w.-]{{0,60}}+"
_NEVER_A_COUNT = rf"(?:{_SECRETS})[\w.-]{{0,60}}+"
_EQUALS = r"\\?[\"']?[ \t]{0,4}[=:][ \t]{0,4}\[?[ \t]{0,4}\\?[\"']{0,3}"
_VALUE = r"(?:(?<=\")[^\"\n]+|(?<=')[^'\n]+|[^\s,;{}\[\]\"'][^\s,;{}\"']*)"
_HOST = r"(?:\[[^\s\]]{2,45}+\]|[^\s/?\"'<>:\[]{0,255}+)(?::\d{1,5}+)?"
_HOOKS = (
    r"hooks\.slack\.com|api\.telegram\.org|hc-ping\.com|ntfy\.[\w.-]{1,100}+(?::\d{1,5}+)?"
    r"|[^\s\"'<>?:/]{1,100}+(?::\d{1,5}+)?(?:/[^\s\"'<>?:/]{0,60}+){0,5}?"
    r"/(?:hooks?|webhooks?|webhookb2|ping|push|heartbeat|trigger|integration)"
)
"""Hosts and paths whose addresses are secrets: of messages, and of services that wait for a sign of life."""
_KEY_HEADER = r"[^\n]{0,160}?(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): [^\n]{0,100}\n"
_KEY_LINE = (
    r"[^\n]{0,160}?(?-i:(?=[a-z0-9+/]{0,99}[A-Z])(?=[A-Z0-9+/]{0,99}[a-z]))"
    r"[A-Za-z0-9+/]{40,100}={0,2}[ \t\r]{0,8}(?:\n|\Z)"
)
"""A line of a key, perhaps behind a log's own prefix. Digests, which have one case, are none."""
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----BEGIN )){0,32768}?(?:-----END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?-----|\Z)"
    rf"|\s{{0,8}}(?:{_KEY_HEADER}){{0,8}}(?:(?:[^\n]{{0,160}}\n)?{_KEY_LINE}){{0,400}}[A-Za-z0-9+/=\s\\]{{0,32768}})"
)
"""Up to its end. Where none is near, only what looks like a key: a forged beginning hides no rest of a log."""
_GROUP = r"(?:\d{1,10}|(?P=user))(?![^\s\0\"'])"
"""A group behind a user's name, as in docker's `--user 1000:1000`: it is no password."""
_METHODS = "GET|POST|PUT|DELETE|HEAD|PATCH"
_SECRETS_MARKS = ("secret", "pass", "credential", "pwd", "psk")
_NAME_MARKS = (*_SECRETS_MARKS, "key", "token", "auth", "cookie", "hook", "sig")
_RULES = tuple(
    (marks, re.compile(pattern, re.ASCII | re.IGNORECASE | re.DOTALL), replacement)
    for marks, pattern, replacement in (
        (("-----begin",), _PRIVATE_KEY, HIDDEN),
        # In URLs: users with passwords, and queries.
        (("://",), r"(\b[a-z][a-z0-9+.-]{1,20}://)(?:[^\s/@\"'<>]{0,500}+@)+", rf"\1{HIDDEN}@"),
        (("://",), rf"(://(?:{_HOOKS})/)[^\s\"'<>]+", rf"\1{HIDDEN}"),
        (("?",), rf"((?:://{_HOST}|\b(?:{_METHODS}) )(?:/[^\s?\"'<>:]{{0,500}}+)?\?)[^\s\"'<>]+", rf"\1{HIDDEN}"),
        # Passwords of command lines: curl -u USER:PASSWORD, mysql -pPASSWORD, sshpass -p PASSWORD.
        (
            ("-u",),
            rf"((?<![\w-])(?:-u|--user)[ \t\0=]\\?[\"']?(?P<user>[^\s\0:\"']{{1,100}}):)(?!{_GROUP})[^\s\0\"']+",
            rf"\1{HIDDEN}",
        ),
        (
            ("mysql", "mariadb", "sshpass"),
            r"(\b(?:mysql|mariadb|sshpass)[\w-]{0,20}[ \0][^\n]{0,200}?(?<![\w-])-p[ \0]?)[^\s\0\"']+",
            rf"\1{HIDDEN}",
        ),
        # Headers to the end of the line, and words behind a scheme.
        (
            ("authorization", "cookie"),
            r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\\?[\"']?\s*[:=])[^\r\n]+",
            rf"\1\2 {HIDDEN}",
        ),
        (
            ("bearer", "basic"),
            r"\b(bearer|basic)(\s+)(?!realm\b|(?-i:[a-z]+)\b)[A-Za-z0-9+/_=.~-]{6,}",
            rf"\1\2{HIDDEN}",
        ),
        # Passphrases of several words; passwords of .netrc; and passwords in a sentence, if they have a digit.
        (("passphrase",), r"(passphrase\\?[\"']?[ \t]{0,4}[=:][ \t]{0,4})(?![\"'*])[^\r\n\"',;}]+", rf"\1{HIDDEN}"),
        (("password",), r"(\b(?:login|account|machine)\s{1,9}+\S{1,200}+\s{1,9}+password\s{1,9}+)\S+", rf"\1{HIDDEN}"),
        (
            ("pass",),
            r"(\bpass(?:word|phrase|wd|code)(?: (?:is|was))? )(?=[^\s\d]{1,64}\d|\d{1,64}[^\s\d])[^\s,;\"']{6,}",
            rf"\1{HIDDEN}",
        ),
        # name=value, name: value, "name": "value", --name value; in quotes to their end.
        *(
            (marks, rf"({name}{_EQUALS})(?!{harmless}){_VALUE}", rf"\1{HIDDEN}")
            for marks, name, harmless in (
                (_NAME_MARKS, _NAME, _HARMLESS),
                (_SECRETS_MARKS, _NEVER_A_COUNT, f"(?:{_PLAIN}){_END}"),
            )
        ),
        # - name: NAME, and below it value: VALUE
        (
            ("value",),
            rf"({_NAME}\\?[\"']?,?[ \t]{{0,4}}\n?[ \t]{{0,60}}[\"']?value{_EQUALS})(?!{_HARMLESS}){_VALUE}",
            rf"\1{HIDDEN}",
        ),
        (
            _NAME_MARKS,
            rf"((?<![\w-])--?[\w-]{{0,60}}{_NAME}(?:[ \t\0]|\",? ?\")++)(?!{_HARMLESS})[^\s\0\"',]+",
            rf"\1{HIDDEN}",
        ),
        (_NAME_MARKS, rf"({_NAME}[ \t]{{1,4}}\\?[\"'])(?![<-]|(?-i:{_VARIABLE})[\"'])[^\"'\n]{{4,}}", rf"\1{HIDDEN}"),
        # Well-known beginnings of tokens, JSON web tokens, and hashes of passwords, as in /etc/shadow.
        (("",), rf"\b(?:{_TOKENS})", HIDDEN),
        (("eyj",), r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{4,}+(?:\.[A-Za-z0-9_-]*)?", HIDDEN),
        (("$",), r"\$(?:apr1|argon2id?|2[abxy]|[1567y])\$[^\s:\"']{8,}", HIDDEN),
    )
)
"""Each rule: words in small letters, the pattern, its replacement. Every match contains one of the words. Most texts
contain none, and are not searched."""
_PROMPT_KEYS = (
    r"prompts?|messages|prompt_token_ids|output_token_ids|input_ids|content|text|inputs?|input_value|outputs?"
    r"|query|arguments"
)
_PROMPT = re.compile(
    rf"^([^\n|]{{0,200}}engine\| [^\n]{{0,16384}}?\b(?:{_PROMPT_KEYS})\b\\?[\"']?\s?[:=])[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
"""A line of the engine's log: with request logging on, vLLM writes behind such a word what clients send."""
_NAMED = re.compile(_NAMES, re.IGNORECASE)


class Redaction(Redactor):
    """Replaces known secrets, such as the content of key files, also where they are encoded, and all likely ones."""

    def list_forms(self, secret: str) -> Iterable[str]:
        """The secret in each encoding, and each of these in each notation of the base class."""
        return (form for encoded in _encode(secret) for form in super(Redaction, self).list_forms(encoded))

    def __call__(self, text: str) -> str:
        text = self.hide_known(text)  # the rules below replace those of the base class
        lower = text.lower()
        for marks, rule, replacement in _RULES:
            if any(mark in lower for mark in marks):
                text = rule.sub(replacement, text)
        return _PROMPT.sub(rf"\1 {HIDDEN}", text)

    def document(self, value: object, name: str = "") -> object:
        """A JSON value without secrets, still valid JSON. `name`: the key of the value, or the flag before it."""
        match value:
            case {**fields}:
                return {self(str(key)): self.document(inner, str(key)) for key, inner in fields.items()}
            case [*items]:
                flags_before = ["", *(word.lstrip("-") if word.startswith("-") else "" for word in map(str, items))]
                pairs = zip(items, flags_before, strict=False)
                return [self.document(inner, name if "=" in flag else flag or name) for inner, flag in pairs]
            case str() | int() | float() if not isinstance(value, bool):
                if _NAMED.search(name) and not re.fullmatch(_HARMLESS, str(value), re.IGNORECASE) and value != "":
                    return HIDDEN
                return self(value) if isinstance(value, str) else value
        return value


def _encode(secret: str) -> Iterator[str]:
    """The secret plain, for URLs, in hexadecimal and in base64. If it is hexadecimal, its bytes are encoded, too."""
    yield secret
    yield quote(secret, safe="")
    contents = [secret.encode("utf-8", "surrogateescape")]
    if re.fullmatch(r"(?:[0-9a-fA-F]{2}){8,}", secret):
        contents.append(bytes.fromhex(secret))
        yield secret.lower()
        yield secret.upper()
    for content in contents:
        yield content.hex()
        yield content.hex().upper()
        # Within a longer text, base64 depends on the place: three forms, without the letters that neighbours share.
        for offset in range(3):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                encoded = encode(b"\0" * offset + content).decode()
                yield encoded[(offset * 8 + 5) // 6 : (len(content) + offset) * 8 // 6]
