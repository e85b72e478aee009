"""What is read of a script that starts an engine, and its words that do not fit the node."""

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.lint_launches import BY_ROLE, GOOD, HEAD, SERVE, WORKER

from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.lint import script


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        (f"exec {SERVE} 0", HEAD, []),
        (f"exec {SERVE} 1 --headless", WORKER, []),
        (f"exec {SERVE} 1", WORKER, ["script-headless"]),
        (f"exec {SERVE} 1 # --headless", WORKER, ["script-headless"]),
        (f"exec {SERVE} 0 --headless", HEAD, ["script-headless"]),
        (f"exec {SERVE} 0", WORKER, ["script-headless", "script-rank"]),
        (f"exec {SERVE} 0 --headless", WORKER, ["script-rank"]),
        (f"nohup {SERVE} 0 \\\n  --headless > /tmp/log 2>&1 &", WORKER, ["script-rank"]),
        (f"exec {SERVE} $RANK --headless", WORKER, []),
        ("MORE=(--headless)\nexec vllm serve /m ${MORE[@]}", WORKER, []),
        (". /etc/vllm.conf\nexec vllm serve /m $MORE", WORKER, []),
        ("exec vllm serve /m --served-model-name a#b --headless", WORKER, []),
        ('if [ $# -gt 0 ]; then exec "$@"; fi\nexec vllm serve /m', WORKER, []),
        (BY_ROLE, HEAD, []),
        (BY_ROLE, WORKER, []),
        ("exec vllm serve $(cat /etc/words)", WORKER, []),
        ('mapfile -t WORDS </etc/words\nexec vllm serve "${WORDS[@]}"', WORKER, []),
        ("exec vllm serve --config /etc/vllm.yaml", WORKER, []),
        ("vllm serve --help >/tmp/help; exec /opt/start", WORKER, []),
        ("if [ $RANK = 0 ]; then vllm serve /m; else exec ray start --address $HEAD --block; fi", WORKER, []),
        (f'. /etc/env\n{SERVE} 5 "$@"', WORKER, []),
        ('exec "${@:1}"', WORKER, []),
        ('echo vllm serve; exec "$@"', WORKER, []),
        ("echo vllm serve --node-rank 7", WORKER, []),
        ("exec vllm serve /m --headless --master-addr spark1 --nnodes 02", WORKER, []),
        (
            "exec vllm serve /m --headless --master-addr 10.0.0.9 --nnodes=3 --master_port 1",
            WORKER,
            ["script-rank"] * 3,
        ),
        ("python3 -m vllm.entrypoints.openai.api_server --node-rank 1", WORKER, ["script-headless"]),
        ("/opt/venv/bin/vllm serve /m", WORKER, ["script-headless"]),
        ("exec /opt/start", WORKER, []),
        ("", WORKER, []),
    ],
)
def test_words_that_do_not_fit_the_nodes_place_are_issues_and_unknown_ones_are_not(
    text: str, place: tuple[int, int, str, int], expected: list[str]
) -> None:
    issues = script.find_misplaced(script.parse_script(text, {}), *place)
    assert [issue.rule for issue in issues] == expected


def test_a_script_is_read_as_the_shell_would() -> None:
    text = f"""#!/bin/bash
# vllm serve --not-this 'nor this
export VLLM_WORKER_MULTIPROC_METHOD=fork OTHER="$HOME"
HF_HUB_OFFLINE=1 exec vllm serve "/models/a b" --max-model-len "$LENGTH" \\
   --compilation-config '{GOOD["compilation-config"]}' --speculative-config {{"method":"mtp"}}
"""
    read = script.parse_script(text, {})
    assert read.env == {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "HF_HUB_OFFLINE": "1"}
    assert read.serves == (
        {"max-model-len": None, "compilation-config": GOOD["compilation-config"], "speculative-config": "{method:mtp}"},
    )
    assert not read.passes_arguments_on


@pytest.mark.parametrize(
    "text",
    [
        """vllm serve /m --hf-overrides '{"a": 1}' --served-model-name "a b" --x=y # --not-this""",
        """vllm serve /m \\\n  --compilation-config {"custom_ops":["all"]} \\\n  --max-model-len 1k;""",
        """A=b nohup vllm serve /m --speculative-config "{\\"method\\":\\"mtp\\"}" >/dev/null 2>&1 | cat""",
        """if true; then exec vllm serve --node-rank 1 --headless; fi""",
        """(vllm serve /m --a 'x\ny' --b) && true""",
        """vllm serve --a=''  --b "" -tp 2 || exit 1""",
        """echo "it's" 'so'; vllm serve --a it\\'s""",
        """vllm serve --a x#y --b '#' --c \\#z --d "a #b" --e "#"# --f;# --not-this""",
    ],
)
def test_bash_gives_an_engine_the_words_that_are_read_here(tmp_path: Path, text: str) -> None:
    words_file = tmp_path / "words_file"
    (tmp_path / "vllm").write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" >{words_file}\n")
    (tmp_path / "vllm").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(["bash", "-c", text], env=env, cwd=tmp_path, check=True, timeout=30, stdout=subprocess.DEVNULL)
    (serve,) = script.parse_script(text, {}).serves
    assert serve == first_values(words_file.read_text().split("\0")[1:-1])


def test_a_long_line_in_an_open_quote_takes_no_second() -> None:
    began = time.process_time()
    script.parse_script("export A=1\n" + 'vllm serve --x "' + "9" * 200_000 + "\n" + "echo x\n" * 30, {})
    assert time.process_time() - began < 1


SHELL = st.lists(
    st.sampled_from(
        ["vllm serve", " ", "'", '"', "\\", "\n", "#", "$@", "--headless", "--nnodes=", "2", ";", "(", "A="]
    ),
    max_size=30,
).map("".join) | st.text(max_size=20)


@settings(max_examples=300, deadline=None)
@given(SHELL)
def test_no_script_is_too_odd(text: str) -> None:
    for issue in script.find_misplaced(script.parse_script(text, {}), *WORKER):
        assert issue.reason
