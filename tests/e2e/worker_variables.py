"""What a lone worker finds in its environment: what it inherits, and exactly what Regroup is documented to set.

CLI.md (Environment), DESIGN.md (worker contract), torchrun's table of variables, proto/README.md (the last two).
"""
import re

# Of the first generation of one rank that is no Python program; what varies, by a pattern.
DOCUMENTED = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
    "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1", "ROLE_NAME": "default", "MASTER_ADDR": r"127\.0\.0\.1", "MASTER_PORT": r"\d+",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": r"\d+", "TORCHELASTIC_RUN_ID": "{job}",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_ERROR_FILE": r"/.+/error\.0\.json",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "REGROUP_JOB": "{job}", "REGROUP_GENERATION": "1", "REGROUP_SOCKET": "/.+", "REGROUP_RESUME_STEP": "0",
    "REGROUP_LOCAL_RANK": "0", "REGROUP_WORKER_TOKEN": "[0-9a-f]{64}", "REGROUP_GROUP": "[0-9a-f]{32}"}
SECRETS = {"REGROUP_TOKEN": "a-secret-of-ours", "REGROUP_KEY_PASSWORD": "another"}


def parse(text):
    """Of `env -0` or /proc/PID/environ. `_` is a shell's note of what it started."""
    pairs = (item.split("=", 1) for item in text.strip("\n").split("\0") if item)
    return {name: value for name, value in pairs if name != "_"}


def check(case, seen, inherited, job, more=None):
    """Asserts that `seen` is `inherited`, overlaid by the documented variables and `more`, and nothing else."""
    inherited = {name: value for name, value in inherited.items() if name != "_"}
    expected = {**DOCUMENTED, **{name: re.escape(value) for name, value in (more or {}).items()}}
    case.assertEqual(sorted(seen), sorted({*inherited, *expected}))
    case.assertEqual({k: v for k, v in seen.items() if k not in expected}, {k: v for k, v in inherited.items() if k not in expected})
    for name, pattern in expected.items():
        case.assertRegex(seen[name], rf"\A(?:{pattern.replace('{job}', job)})\Z", name)
