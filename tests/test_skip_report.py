"""What is skipped for want of a program is said once, with what to install."""

from __future__ import annotations

import pytest

from tests.support.skip_report import package_of, skip_lines


@pytest.mark.parametrize(
    ("reason", "package"),
    [
        ("bubblewrap is not installed: install the package bubblewrap", "bubblewrap"),
        ("there is no mosquitto on this machine: apt install mosquitto", "mosquitto"),
        ("psycopg is not installed: pip install 'psycopg[binary]'", "psycopg"),
        ("needs curl (install curl)", "curl"),
        ("zsh is not installed", "zsh"),
        ("could not import 'x': install linux-libc-dev.", "linux-libc-dev"),
        ("only root can become somebody else", ""),
    ],
)  # fmt: skip
def test_a_skip_reason_names_the_package_to_install(reason: str, package: str) -> None:
    assert package_of(reason) == package


def test_packages_are_listed_once_and_other_reasons_are_counted() -> None:
    needs = ["install zsh", "apt install mosquitto", "install zsh"]
    assert list(skip_lines([*needs, "needs root", "needs root"])) == [
        "3 tests skipped: install mosquitto, zsh to run them",
        "2 tests skipped: this machine or user does not allow them:",
        "  2 x needs root",
    ]


def test_without_skipped_tests_the_report_is_empty() -> None:
    assert list(skip_lines([])) == []
