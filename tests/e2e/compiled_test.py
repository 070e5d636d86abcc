"""torch.compile in a warm rank."""
import json
import os
import textwrap

import regroup_e2e as e2e
from python_test import PACKAGE

SCRIPT = """
    import json
    import torch
    from torch._dynamo.utils import counters

    @torch.compile
    def f(x, w):
        return torch.nn.functional.gelu(x @ w).sum()

    torch.manual_seed(3)
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    y = f(x, w)
    y.backward()
    graphs = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")}
    print(json.dumps({"value": y.item(), "gradient": w.grad.tolist(), **graphs}))
    """


class Compiled(e2e.TestCase):
    def run_with(self, *options):
        run = self.fx.run("run", "-q", *options, "train.py", timeout=120, env={
            "PYTHON_EXEC": e2e.torch_python(), "PYTHONPATH": PACKAGE, "TORCHINDUCTOR_CACHE_DIR": self.fx.path("work", "cache")})
        self.assertEqual(run.code, 0, run)
        self.assertNotIn("start cold", run.stderr)
        return json.loads(run.stdout)

    def test_a_warm_rank_finds_what_a_cold_one_has_compiled(self):
        with open(self.fx.path("work", "train.py"), "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(SCRIPT))
        os.mkdir(self.fx.path("work", "cache"))
        cold, warm, again = self.run_with(), self.run_with("--warm"), self.run_with()
        self.assertGreater(cold["miss"], 0)
        for other in (warm, again):
            self.assertEqual(other, {**cold, "hit": cold["miss"], "miss": 0})


if __name__ == "__main__":
    e2e.main()
