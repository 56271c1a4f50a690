"""Credentials in the lines that made an image: found by name, never by value, and no false alarm on what is usual."""

from envcheck.checks.support import secret_patterns
from tests.tables import each

CANARY = "canary"  # what must never be read out
LONG = CANARY * 6


@each(
    "line, actual",
    [
        (f"RUN |1 HF_TOKEN={CANARY} /bin/sh -c python get.py # buildkit", ["HF_TOKEN"]),
        (f"/bin/sh -c #(nop)  ENV AWS_SECRET_ACCESS_KEY={CANARY}", ["AWS_SECRET_ACCESS_KEY"]),
        (f'ENV API_KEY="{CANARY} b"', ["API_KEY"]),
        (f"RUN huggingface-cli login --token {CANARY}", ["--token"]),
        (f"RUN wget --password={CANARY} x", ["--password"]),
        (f"RUN pip install -i https://me:{CANARY}@mirror.example/simple x", ["a password in a URL"]),
        (f"RUN git clone https://{LONG}@git.example/x", ["a password in a URL"]),
        (f"RUN curl -H 'Authorization: Bearer {CANARY}' x", ["an Authorization header"]),
        (f"RUN echo hf_{LONG} > x", ["a Hugging Face token"]),
        (f"COPY ghp_{LONG} x", ["a GitHub token"]),
        (f"RUN echo {'AKIA' + 'CANARYCANARY1234'}", ["an AWS key"]),
        ("RUN echo '-----BEGIN " + "OPENSSH PRIVATE KEY-----'", ["a private key"]),
        (f"RUN A_TOKEN={CANARY} B_TOKEN={CANARY} A_TOKEN={CANARY} x", ["A_TOKEN", "B_TOKEN"]),
    ],
)
def test_a_credential_is_named_and_not_read_out(line: str, actual: list[str]) -> None:
    assert secret_patterns.line(line) == actual


@each(
    "line",
    [
        "ARG HF_TOKEN",
        "ENV HF_TOKEN=",
        "RUN --mount=type=secret,id=hf_token HF_TOKEN=$(cat /run/secrets/hf_token) python get.py",
        'RUN HF_TOKEN="$(cat /run/secrets/hf_token)" python get.py',
        "RUN TOKEN=`cat /run/secrets/token` python get.py",
        "ENV HF_TOKEN_PATH=/run/secrets/token",
        "ENV MAX_TOKENS=4096",
        "ENV TOKENIZERS_PARALLELISM=false",
        "ENV GPG_KEY=A035C8C19219BA821ECEA86B64E628F8D684696D",
        "RUN docker login --password-stdin registry.example",
        "RUN python x.py --tokenizer bert",
        "RUN git clone ssh://git@git.example/x && pip install -i https://mirror.example/simple x",
        "RUN curl -H 'Authorization: Bearer $TOKEN' x",
    ],
)
def test_what_is_usual_is_none(line: str) -> None:
    assert secret_patterns.line(line) == []
