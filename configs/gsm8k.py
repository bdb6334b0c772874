"""Grade-school mathematics (GSM8K) as prompts: the path of a real data set, read through TFDS without TensorFlow.

    python -m creditjax.tasks.gsm8k --source=DIR_WITH_JSONL --out=DIR
    python -m experiments.train --config=configs/gsm8k.py --config.task.data_dir=DIR --workdir=runs/gsm8k

The data have to be prepared first, from the published JSON lines; nothing is downloaded. The policy is a
character-level transformer of a few million parameters from scratch, which does not solve such problems: this config is
there for the data path, and for policies that were loaded with published weights. `:runlocal` prepares a handful of
made-up problems of the same form by itself.
"""

import json
import pathlib
import tempfile

from ml_collections import ConfigDict

from creditjax import sweeps
from creditjax.training import default_config, parse_arg


def get_config(arg: str | None = None) -> ConfigDict:
    """The config; `arg` may hold `runlocal` and `steps=…`."""
    arg = parse_arg(arg, runlocal=False, steps=0)
    config = default_config()
    config.steps = arg.steps or (2 if arg.runlocal else 1000)

    config.task = {
        "name": "gsm8k",
        # What `creditjax.tasks.gsm8k.prepare` wrote to.
        "data_dir": _made_up() if arg.runlocal else "data/gsm8k",
        "max_prompt": 96 if arg.runlocal else 512,
        "max_answer": 48 if arg.runlocal else 384,
    }
    config.policy = {"name": "transformer", "width": 32, "depth": 1, "heads": 2}
    if not arg.runlocal:
        config.policy = {"name": "transformer", "width": 256, "depth": 6, "heads": 8}
    config.recipe = {"name": "grpo"}

    config.batch.prompts = 8 if arg.runlocal else 32
    config.batch.group_size = 2 if arg.runlocal else 8
    config.batch.micro_batches = 1 if arg.runlocal else 4
    config.optimizer.learning_rate = 3e-4
    config.optimizer.warmup = 20

    config.warm_start.steps = 2 if arg.runlocal else 2000
    config.warm_start.prompts = 8 if arg.runlocal else 64
    config.warm_start.learning_rate = 1e-3

    config.eval.every = 2 if arg.runlocal else 250
    config.eval.size = 8 if arg.runlocal else 256
    config.checkpoint.every = 2 if arg.runlocal else 250
    config.log.every = 1 if arg.runlocal else 10
    return config


def _made_up() -> str:
    """Prepares problems of GSM8K's form, the same at every call, and returns where."""
    from creditjax.tasks import gsm8k

    root = pathlib.Path(tempfile.gettempdir()) / "creditjax_made_up_gsm8k"
    source = root / "jsonl"
    source.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 64), ("test", 16)):
        rows = [(a % 9 + 1, (a * 7 + len(split)) % 9 + 1) for a in range(count)]
        lines = [
            json.dumps(
                {"question": f"Tom has {a} pens and gets {b}. How many?", "answer": f"{a}+{b}={a + b}\n#### {a + b}"}
            )
            for a, b in rows
        ]
        (source / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    gsm8k.prepare(source, root)
    return str(root)


def get_hyper() -> list[dict]:
    """Where 1/length sits."""
    return sweeps.product({"recipe.name": ["grpo", "dr_grpo", "dapo"]})
