"""What `conftest.py` leaves out is reported as skipped, not as passed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("minutes", "word"), [("0", "skipped"), ("60", "passed")])
def test_no_test_starts_when_the_minutes_are_over(minutes: str, word: str) -> None:
    options = ["-p", "no:cacheprovider", "--minutes", minutes, "tests/test_errors.py"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=ROOT,
    )
    last = result.stdout.splitlines()[-1]
    assert word in last
    assert ("passed" in last) != ("skipped" in last)
    assert "failed" not in last
