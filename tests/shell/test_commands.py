"""What a command comes down to, told from its text alone."""

from __future__ import annotations

import pytest

from evoclaw.shell.commands import read_command
from evoclaw.shell.effects import Effects


def effects(command: str) -> Effects:
    return read_command(command, "/w", "/home/me")


def programs(command: str) -> list[str]:
    found = effects(command)
    assert not found.unreadable, found.unreadable
    return [one.name for one in found.programs]


def paths(command: str, access: str) -> set[str]:
    return {one.pattern for one in effects(command).places if one.access == access and one.sure}


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("ls -la", ["ls"]),
        ("a | b && c || d; e & f", ["a", "b", "c", "d", "e", "f"]),
        ("r''m x; \\rm x; 'r'\"m\" x", ["rm", "rm", "rm"]),
        ("$'\\x72\\155' x", ["rm"]),
        ("x=rm; $x -r y", ["rm"]),
        ("echo $(a) `b` <(c) >(d)", ["a", "b", "c", "d", "echo"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("for i in 1 2; do a; done; while b; do c; done", ["a", "b", "c"]),
        ("case x in y) a;; *) b;; esac", ["a", "b"]),
        ("ls() { a; }; ls", ["a", "ls"]),
        ("(a; { b; }) > f", ["a", "b"]),
        ("sudo -u bob env A=b nice -n 3 timeout 5 a", ["sudo", "env", "nice", "timeout", "a"]),
        ("sh -c 'a; bash -c b'", ["sh", "a", "bash", "b"]),
        ("eval 'a b'; trap c EXIT", ["eval", "a", "trap", "c"]),
        ("echo x | xargs -n1 rm", ["echo", "xargs", "rm"]),
        ("find . -exec rm {} + -o -execdir touch x \\;", ["find", "rm", "rm", "touch"]),
        ("bash <<'EOF'\na\nEOF", ["bash", "a"]),
        ("bash <<< 'a b'", ["bash", "a"]),
        ("cat <<EOF && b\n$(a)\nEOF", ["a", "cat", "b"]),
        ("a \\\n  b", ["a"]),
        ("/usr/bin/rm x", ["rm"]),
        ("> f a", ["a"]),
        ("! time -p a", ["time", "a"]),
        ("[ -f x ] && a", ["a"]),
        ("git commit -m \"$(cat <<'EOF'\nit (works\nEOF\n)\"", ["cat", "git"]),
    ],
)
def test_every_program_is_found(command: str, names: list[str]) -> None:
    assert programs(command) == names


@pytest.mark.parametrize(
    ("command", "reads", "writes"),
    [
        ("cat a > b 2>> c < d", {"/w/a", "/w/d"}, {"/w/b", "/w/c"}),
        ("echo x > b y", set[str](), {"/w/b"}),
        ("echo x | tee -a ~/b", set[str](), {"/home/me/b"}),
        ("dd if=a of=b", {"/w/a"}, {"/w/b"}),
        ("cd sub && cat a", {"/w/a", "/w/sub/a"}, set[str]()),
        ("sort -o out in", {"/w/in"}, {"/w/out"}),
        ("mkdir -p src/{a,b}", set[str](), {"/w/src/a", "/w/src/b"}),
        ("head -n 3 -- -x", {"/w/-x"}, set[str]()),
        ("grep -rn foo src", {"/w/src"}, set[str]()),
        ('for f in *.py; do cat "$f"; done', {"/w/*.py"}, set[str]()),
        ("cat $x", {""}, set[str]()),
    ],
)
def test_paths_are_classified_as_read_or_written(
    command: str, reads: set[str], writes: set[str]
) -> None:
    assert (paths(command, "read"), paths(command, "write")) == (reads, writes)


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        ("curl -s https://a.org/x", {"a.org"}),
        ("curl http://good@EVIL.org.:80/", {"evil.org"}),
        ("wget 2130706433", {"127.0.0.1"}),
        ("ssh -p 22 me@a.org ls", {"a.org", "22"}),
        ("git clone git@a.org:x/y", {"a.org"}),
        (": > /dev/tcp/a.org/80", {"a.org"}),
        ("pip install x", {""}),
        ("curl $x", {""}),
    ],
)
def test_hosts_are_found(command: str, hosts: set[str]) -> None:
    found = {one.name for one in effects(command).hosts}
    assert hosts - {"22"} <= found


@pytest.mark.parametrize(
    "command",
    [
        "python -c 'x'",
        "python3 - < x",
        "perl -e x",
        "awk 'BEGIN{system(\"x\")}'",
        "sed 's/a/b/e' x",
        "sed '1w x' y",
        "source x",
        ". ./x",
        "bash x.sh",
        "ssh host ls",
        "git -c core.pager=x log",
        "tar --to-command=x -xf y",
        "echo x > s; ./s",
        "vim -c x",
    ],
)
def test_commands_that_run_other_code_are_detected(command: str) -> None:
    assert effects(command).code


@pytest.mark.parametrize("command", ["awk '{print $1}' x", "sed -i 's/a/b/g' x", "python x.py"])
def test_common_commands_are_not_reported_as_running_other_code(command: str) -> None:
    assert not effects(command).code


@pytest.mark.parametrize(
    "command",
    [
        "$x y",
        "$(echo rm) y",
        "/bin/r? y",
        "{rm,-rf} $y",
        "ls <<< 'x",
        "r\\\nm x",
        "rm\r\nls",
        "ls\u00a0x",
        "l\u200bs",
        "ls \x00",
        "coproc ls",
        "alias x=rm",
        "eval $x",
        "echo x | sh",
        "sh < x",
        "bash -i",
        "env -S 'rm x'",
        "(( a[$(rm)] ))",
        "x='a[$(rm)]'; (( x ))",
        "echo ${x@P}",
        "echo ${!x}",
        "printf -v 'a[$(rm)]' x",
        "test -v 'a[$(rm)]'",
        "declare -n x=y",
        "hash -p /bin/rm ls",
        "enable -f x y",
        "shopt -s expand_aliases",
        "sh -c '((rm))'",
        "sh -c '[[ a > b ]]'",
        "[ a > b ]",
        "[ a && rm ]",
        "cat <<A\nx \\\nA\nrm\nA",
        "select x in a; do rm; done",
        "echo `echo \\`rm\\``",
        "find . -files0-from x",
        "xargs --nosuch rm",
        "ls\nfor",
        "x" * 20_000,
    ],
)
def test_undecidable_commands_are_marked_unreadable(command: str) -> None:
    assert effects(command).unreadable


def test_a_shell_variable_is_unknown_in_a_child_shell() -> None:
    assert effects("x=true; bash -c '$x rm'").unreadable


def test_a_reassigned_variable_is_not_a_constant() -> None:
    assert effects("x=true; for i in 1 2; do $x y; x=rm; done").unreadable
    assert programs("i=0; while ((i < 3)); do echo $i; ((i++)); done") == ["echo"]


def test_programs_before_an_unreadable_part_are_reported() -> None:
    found = effects("rm -rf /; $x")
    assert found.unreadable and found.programs[0].name == "rm"


def test_dangerous_environment_variables_are_recognized() -> None:
    found = {
        one.name: one.dangerous for one in effects("LD_PRELOAD=x PATH=. A=b env C=d ls").settings
    }
    assert found == {"LD_PRELOAD": True, "PATH": True, "A": False, "C": False}
