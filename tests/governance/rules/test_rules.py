"""Rules: what they hit, in which order they count, and how they prove themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import ALLOW, Allow, Ask, Deny, Verdict
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.governance.permissions import ToolStatus
from evoclaw.governance.rules.command_rules import PreApproval
from evoclaw.governance.rules.document import CallExample, RuleDocument, parse_rules, shipped_rules
from evoclaw.governance.rules.examples import (
    EXAMPLE_HOME,
    EXAMPLE_WORKSPACE,
    check_examples,
    example_call,
    load_rules,
)
from evoclaw.governance.rules.path_resolver import LocalPathResolver
from evoclaw.governance.rules.policy import RulePolicy

ALLOWLIST = """
default = "deny"
code = "deny"
[[rules]]
name = "reading"
then = "allow"
programs = ["cat", "ls", "git", "bash"]
allows = ["cat x | ls", "git status && ls", "bash -c 'ls; cat y'"]
denies = ["cat x | rm y", "ls; $x", "ls $(rm x)", "bash -c 'rm x'", "./ls"]
[[rules]]
name = "copying"
then = "allow"
programs = ["cp"]
paths = ["src/**"]
allows = ["cp src/a src/b"]
denies = ["cp src/a /etc/b", "cp $x src/b"]
"""


def rules(text: str, workspace: str = "/w", disk: LocalPathResolver | None = None) -> RulePolicy:
    document = parse_rules(text, "test.toml")
    check_examples(document, workspace=workspace, home="/home/me")
    return RulePolicy(document, workspace=workspace, home="/home/me", resolver=disk)


def one_rule(body: str, then: str = "deny") -> RulePolicy:
    return rules(f'[[rules]]\nname = "r"\nthen = "{then}"\n{body}\n')


def judge(policy: RulePolicy, example: str | CallExample) -> Verdict:
    return policy.evaluate(example_call(example)).verdict


def test_the_shipped_rules_pass_their_examples() -> None:
    assert check_examples(shipped_rules(), workspace=EXAMPLE_WORKSPACE, home=EXAMPLE_HOME) > 80


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        # Found by the fuzzer of test_bypass.py, or while it was written.
        ("ln d/forbidden", 'paths = ["forbidden"]\naccess = "write"\ndenies = ["> forbidden"]'),
        ("x=true; bash -c '$x marker'", 'programs = ["marker"]\ndenies = ["marker"]'),
        (
            "cp -s secret b; echo x > b",
            'paths = ["secret"]\naccess = "write"\ndenies = ["> secret"]',
        ),
        (
            "curl -s good.org %6cocalhost:8080",
            'domains = ["localhost"]\ndenies = ["curl localhost"]',
        ),
        ("> forbidde{n..n}", 'paths = ["forbidden"]\ndenies = ["cat forbidden"]'),
        ("echo '. -exec x ;' | xargs find", 'programs = ["x"]\ndenies = ["x"]'),
        ("dd if=$(echo a of=forbidden)", 'paths = ["forbidden"]\ndenies = ["cat forbidden"]'),
        ("declare -a x='($(x))'", 'programs = ["x"]\ndenies = ["x"]'),
        ("REPLY=true; read <<< x; $REPLY", 'programs = ["x"]\ndenies = ["x"]'),
        ("wget http://a.org/x/forbidden", 'paths = ["forbidden"]\ndenies = ["cat forbidden"]'),
        ("gunzip forbidden.gz", 'paths = ["forbidden"]\ndenies = ["cat forbidden"]'),
        # Found by people.
        ("cargo watch -x 'run; marker'", 'programs = ["marker"]\ndenies = ["marker"]'),
        ("cargo watch -qcs marker", 'programs = ["marker"]\ndenies = ["marker"]'),
        ("cargo watch --shell=marker", 'programs = ["marker"]\ndenies = ["marker"]'),
        ("cargo watch -w src -- marker", 'programs = ["marker"]\ndenies = ["marker"]'),
        ("docker -H unix:///run/x ps", 'paths = ["/run/x"]\ndenies = ["cat /run/x"]'),
        ("docker -Hunix:///run/x ps", 'paths = ["/run/x"]\ndenies = ["cat /run/x"]'),
        ("docker run -v /run/x:/y z", 'paths = ["/run/x"]\ndenies = ["cat /run/x"]'),
    ],
)
def test_known_rule_bypasses_are_denied(command: str, rule: str) -> None:
    assert judge(one_rule(rule), command) is not ALLOW


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        *((f"chmod {mode} x", "set-user-id") for mode in ("u=rwxs", "3755", "5755", "=4755")),
        *((f"install {mode} a b", "set-user-id") for mode in ("-m 4755", "-m6755", "--mode=u=s")),
        ("docker -H unix:///run/docker.sock ps", "container-socket"),
        ("git init --template=evil x", "git-template"),
        ("cargo watch -s 'rm -rf /'", "whole-system"),
        ("echo ../evil > .git/commondir", "runs-by-itself"),
        ("tee .vscode/tasks.json", "runs-by-itself"),
    ],
)
def test_the_shipped_rules_see_every_way_to_say_it(command: str, rule: str) -> None:
    shipped = load_rules(None, workspace="/w", home="/home/me")
    decided = shipped.evaluate(example_call(command)).decided
    assert decided is not None and decided.code == f"rule:{rule}"


@pytest.mark.process
def test_the_shell_parser_is_loaded_only_when_a_command_is_judged() -> None:
    script = (
        "import sys; from evoclaw.governance.rules.examples import load_rules, example_call; "
        "from evoclaw.governance.rules.document import CallExample; "
        "rules = load_rules(None, workspace='/w', home='/h'); "
        "rules.evaluate(example_call(CallExample('read', {'path': 'x'}))); "
        "assert 'tree_sitter' not in sys.modules; "
        "rules.evaluate(example_call('ls')); assert 'tree_sitter' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_an_allowlist_checks_every_program_of_a_command() -> None:
    policy = rules(ALLOWLIST)
    assert judge(policy, "cat x | ls > out") is ALLOW
    verdict = judge(policy, "cat x && rm y")
    assert isinstance(verdict, Deny) and verdict.code == "default"
    assert "rm" in verdict.reason


async def test_deny_beats_ask_beats_allow_in_any_order() -> None:
    policy = rules(
        '[[rules]]\nname = "a"\nthen = "allow"\nprograms = ["x"]\nallows = ["x y"]\n'
        '[[rules]]\nname = "b"\nthen = "ask"\nprograms = ["x"]\n'
        'arguments = ["-i"]\ndenies = ["x -vi"]\n'
        '[[rules]]\nname = "c"\nthen = "deny"\nprograms = ["x"]\n'
        'arguments = ["-f"]\ndenies = ["x -f"]\n'
    )
    assert await policy.judge(example_call("x")) is ALLOW
    asked = await policy.judge(example_call("x -i"))
    assert isinstance(asked, Ask) and asked.code == "rule:b"
    denied = await policy.judge(example_call("x -i && x -f"))
    assert isinstance(denied, Deny) and denied.code == "rule:c"


@pytest.mark.parametrize(
    "path",
    [
        "secret",
        "./secret",
        "sub/../secret",
        "/w//secret",
        "SECRET",
        "secret/below",
        "/w/./x/../secret",
    ],
)
def test_a_path_rule_matches_every_spelling_of_a_path(path: str) -> None:
    policy = one_rule('paths = ["secret"]\ndenies = ["cat secret"]')
    assert isinstance(judge(policy, CallExample("read", {"path": path})), Deny)
    assert isinstance(judge(policy, f"cat {path}"), Deny)


def test_a_path_unknown_before_execution_is_asked_about_and_never_allowed() -> None:
    policy = one_rule('paths = ["secret"]\ndenies = ["cat secret"]')
    asked = judge(policy, "cat $x")
    assert isinstance(asked, Ask) and asked.code == "maybe:r"
    strict = rules('unreadable = "deny"\n[[rules]]\nname = "r"\nthen = "deny"\npaths = ["secret"]\n'
                   'denies = ["cat secret"]')  # fmt: skip
    assert isinstance(judge(strict, "cat $x"), Deny)
    assert isinstance(judge(strict, "cat s*"), Deny)
    assert judge(strict, "cat t*") is ALLOW


def test_read_and_write_access_are_separate() -> None:
    policy = one_rule('paths = ["/etc/**"]\naccess = "write"\ndenies = ["> /etc/x"]')
    assert judge(policy, "cat /etc/hosts") is ALLOW
    assert isinstance(judge(policy, "cat x | tee /etc/hosts"), Deny)
    assert isinstance(judge(policy, CallExample("write", {"path": "/etc/x"})), Deny)
    patch = "*** Begin Patch\n*** Update File: ../etc/x\n@@\n-a\n+b\n*** End Patch"
    assert isinstance(judge(policy, CallExample("apply_patch", {"patch": patch})), Deny)


def test_a_commit_reads_the_working_tree_and_writes_only_the_repository() -> None:
    named = CallExample(tool="git_commit", arguments={"message": "x", "paths": ["a.txt"]})
    inside = CallExample(tool="git_commit", arguments={"message": "x", "workdir": "inner"})
    anywhere = one_rule(
        'access = "write"\npaths = ["a.txt", "inner/.envrc"]\ndenies = ["touch a.txt"]'
    )
    repository = one_rule(
        'access = "write"\npaths = [".git", "inner/.git"]\ndenies = ["touch .git/x"]'
    )
    secret = one_rule('paths = ["inner/secret.txt"]\ndenies = ["cat inner/secret.txt"]')
    for commit in (named, inside):
        assert isinstance(judge(anywhere, commit), Allow)
        assert isinstance(judge(repository, commit), Deny)
    assert isinstance(judge(secret, inside), Deny)


def test_path_rules_follow_symlinks(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "alias").symlink_to("secret")
    (tmp_path / "dangling").symlink_to("to-be")
    (tmp_path / "here").symlink_to(".")
    text = (
        '[[rules]]\nname = "r"\nthen = "deny"\npaths = ["secret", "to-be"]\ndenies = ["cat secret"]'
    )
    policy = rules(text, str(tmp_path), LocalPathResolver())
    for path in ("alias", "here/secret", "dangling", "here/here/to-be", "al*"):
        assert isinstance(judge(policy, f"cat {path}"), Deny), path
    by_name = rules(text, str(tmp_path))
    assert judge(by_name, "cat alias") is ALLOW


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.org",
        "http://a.evil.org:8/x",
        "HTTPS://EVIL.ORG./",
        "https://good.org@evil.org/",
    ],
)
def test_a_domain_rule_matches_every_spelling_of_an_url(url: str) -> None:
    policy = one_rule('domains = ["evil.org", "*.evil.org"]\ndenies = ["curl evil.org"]')
    assert isinstance(judge(policy, CallExample("webfetch", {"url": url})), Deny)
    assert isinstance(judge(policy, f"curl '{url}'"), Deny)
    assert judge(policy, CallExample("webfetch", {"url": "https://notevil.org"})) is ALLOW


def test_a_domain_rule_matches_internationalized_names() -> None:
    policy = one_rule('domains = ["bücher.example"]\ndenies = ["curl xn--bcher-kva.example"]')
    assert isinstance(
        judge(policy, CallExample("webfetch", {"url": "http://BÜCHER.example"})), Deny
    )


def test_an_address_rule_matches_every_notation_of_an_ip_address() -> None:
    policy = one_rule('domains = ["127.0.0.0/8", "::1"]\ndenies = ["curl 127.0.0.1"]')
    for host in ("127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:127.0.0.1]"):
        assert isinstance(judge(policy, f"curl 'http://{host}/'"), Deny), host


def test_a_rule_can_match_arguments_of_any_tool() -> None:
    policy = one_rule(
        'tools = ["relay*"]\nwhere = { state = "on" }\n'
        'denies = [{ tool = "relay_set", arguments = { state = "on" } }]\n'
        'allows = [{ tool = "relay_set", arguments = { state = "off" } }]'
    )
    assert isinstance(judge(policy, CallExample("relay_set", {"state": "on"})), Deny)


def test_nested_arguments_of_unknown_tools_are_checked() -> None:
    policy = one_rule('paths = ["/etc/**"]\ndenies = ["cat /etc/x"]')
    nested = CallExample("mcp_thing", {"options": {"items": [{"file_path": "/etc/passwd"}]}})
    assert isinstance(judge(policy, nested), Deny)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "unknown field `x`"),
        ('default = "maybe"', "Invalid enum value 'maybe'"),
        ("[[rules]", "is not TOML"),
        ('unreadable = "allow"', "never allow"),
        ('[[rules]]\nname = "r"\nthen = "deny"\npaths = ["x"]', "no examples"),
        ('[[rules]]\nname = "r"\nthen = "deny"\ndenies = ["x"]', "has no condition"),
        ('[[rules]]\nname = "r"\nthen = "deny"\nprogram = ["x"]', "rule r"),
        ('[[rules]]\nname = "r"\nthen = "deny"\narguments = ["x"]\ndenies = ["x"]', "`programs`"),
        ('[[rules]]\nname = "r"\nthen = "deny"\npaths = ["../x"]\ndenies = ["x"]', "`..`"),
        ('[[rules]]\nname = "r"\nthen = "deny"\ndomains = ["a b"]\ndenies = ["x"]', "not a domain"),
    ],
)
def test_an_error_in_a_rules_file_is_named_clearly(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        rules(text)


def test_a_failing_example_refuses_the_rules_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rules]]\nname = "no-force"\nthen = "deny"\nprograms = ["git"]\n'
        'arguments = ["push", "--force*"]\ndenies = ["git push -f"]\n'
    )
    with pytest.raises(ConfigError) as refused:
        load_rules(path, workspace="/w", home="/home/me")
    said = str(refused.value)
    assert "'no-force'" in said and "'git push -f'" in said and "would be allowed" in said
    path.write_text(
        '[[rules]]\nname = "r"\nthen = "deny"\nprograms = ["git"]\nallows = ["git status"]\n'
    )
    with pytest.raises(ConfigError, match="deny by rule:r"):
        load_rules(path, workspace="/w", home="/home/me")


def test_a_denial_gives_the_model_the_command_and_the_rule() -> None:
    policy = one_rule('programs = ["x"]\ndenies = ["x"]')
    verdict = judge(policy, "x y")
    assert isinstance(verdict, Deny) and "x y" in verdict.reason and "'r'" in verdict.reason


def test_a_denied_path_is_named_also_if_it_may_only_be_below_a_folder() -> None:
    policy = RulePolicy(shipped_rules(), workspace="/w", home="/home/me", resolver=None)
    for command, could in (
        ("echo x > .git/hooks/pre-commit", "write /w/.git/hooks/pre-commit."),
        (r"find . -name '*.log' -exec mv {} logs/ \;", "write any file below /w."),
        ("tar czf out.tgz ~", "read any file below /home/me."),
        ("rm -r .git/hooks", "write /w/.git/hooks."),
    ):
        verdict = judge(policy, command)
        assert isinstance(verdict, Deny)
        assert verdict.reason.endswith(f" The call could {could}"), verdict.reason


async def test_a_disabled_tool_is_denied_with_the_reason() -> None:
    status = ToolStatus({"web*": "no network here", "canvas": ""})
    fetch = Call("1", Tool("webfetch", "", {}, effect=Effect.READ), {}, "r", 1.0)
    verdict = await status.judge(fetch)
    assert isinstance(verdict, Deny)
    assert verdict.code == "tool_off" and "no network here" in verdict.reason
    assert await status.judge(Call("1", Tool("read", "", {}), {}, "r", 1.0)) is ALLOW


def test_unreadable_commands_are_never_allowed() -> None:
    policy = RulePolicy(RuleDocument(), workspace="/w", home="/home/me")
    verdict = judge(policy, "ls 'x")
    assert isinstance(verdict, Ask) and verdict.code == "unreadable"


@pytest.mark.parametrize(
    "command", ["chmod +x a.sh && ./a.sh", "chmod 644 b.sh", "git init -q .", "git at"]
)
def test_harmless_lookalikes_of_dangerous_commands_match_no_rule(command: str) -> None:
    shipped = load_rules(None, workspace="/w", home="/home/me")
    assert shipped.evaluate(example_call(command)).decided is None


async def test_advance_approval_covers_unclear_commands_but_no_matching_rule() -> None:
    free = PreApproval(load_rules(None, workspace="/w", home="/home/me"))
    unclear = await free.judge(example_call('cat "$f"'))
    assert isinstance(unclear, Allow) and unclear.code == "in_advance:maybe:keys-and-passwords"
    assert isinstance(await free.judge(example_call("sudo ls")), Ask)
    assert isinstance(await free.judge(example_call("cat /etc/shadow")), Deny)


@pytest.mark.parametrize(
    "command",
    [
        "cat ~/.ssh/id_rsa; (exec 3<>/dev/null) ]]",
        'if then; cat "$HOME/.ssh/id_rsa"',
        "cat ${HOME}/.aws/credentials )",
        "echo ( ; tee .git/hooks/pre-commit",
        "c\\at /etc/sha\\dow )",
    ],
)
def test_paths_named_in_an_unreadable_command_are_denied(command: str) -> None:
    shipped = load_rules(None, workspace="/w", home="/home/me")
    judged = shipped.evaluate(example_call(command))
    assert judged.effects.unreadable
    assert isinstance(judged.verdict, Deny)
