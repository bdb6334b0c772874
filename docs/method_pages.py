"""Pages of the documentation site that are made from the registry: one a recipe, their index, and which to take."""

from collections.abc import Callable, Iterable
import itertools
import re
import shlex

import creditjax
from creditjax.recipes import Recipe, Sampler, cards, registry
from docs import make_tables, make_trained

# What configs say to a task of `make_trained.CONFIGS`, as flags.
COMMANDS = {
    "words": "configs/quickstart.py",
    "sums": "configs/stepwise.py:questions=chain_sum",
    "solutions": "configs/judging.py:questions=chain_sum",
    "lookup": "configs/lookup.py",
}
FAMILIES = {
    "token_level": "Credit to tokens",
    "process_reward": "Credit from judged steps",
    "turn_level": "Credit to turns",
    "tree": "Credit from trees of rollouts",
    "multi_agent": "Credit to agents",
}
# Questions that people have, and what `creditjax.recommend` is asked.
SITUATIONS = (
    ("Long answers, graded at the end, nothing else", {}),
    ("Short answers, graded at the end", {"tokens": 500}),
    ("A critic can be trained beside the policy", {"critic": True}),
    ("Rollouts can start again from states in the middle", {"branch": True}),
    ("An agent in turns that comes back to the same states", {"signals": ["segment", "state_key"]}),
    ("A process-reward model scores every step", {"signals": ["segment", "process_reward"]}),
    ("An implicit reward model can be trained on outcomes", {"signals": ["segment", "logprob_prm"]}),
    ("A judge says which steps are wrong", {"signals": ["segment", "judge_error"]}),
    ("The model's chance of the right answer can be asked after each step", {"signals": ["segment", "potential"]}),
    ("Tool calls with reference calls to match", {"signals": ["segment", "call_similarity"]}),
    ("Three agents share one outcome", {"agents": 3, "signals": ["coalition_value"]}),
)
SHOWN = 5  # recipes of a kind


def functions() -> set[Callable]:
    """The recipe functions: each has a page of its own."""
    return {entry.make for entry in registry._REGISTRY.values()}


def pages() -> dict[str, str]:
    """Markdown of every page by name: "index", "which", and one a recipe."""
    trained = make_trained.known()
    made = {name: _page(creditjax.recipe(name), trained) for name in creditjax.list_recipes()}
    return {"index": _index(), "which": _which(), **made}


def _page(recipe: Recipe, trained: dict[tuple[str, str], str]) -> str:
    card, make = recipe.card, registry._REGISTRY[recipe.name].make
    paper = f"{card.title}. " if card.title else ""
    blocks = [
        f"# {card.name}",
        f"{paper}{make_tables.paper_link(card.paper, card.title)}",
        _table(
            ("credit to", "how", "reads, beside tokens, masks and outcomes", "cost", "tier"),
            [(card.granularity, card.methodology, _names(recipe.needs) or "nothing", recipe.cost, recipe.tier)],
        ),
        f"```{{eval-rst}}\n.. autofunction:: {make.__module__}.{make.__name__}\n```",
        f"Called as `creditjax.recipe({recipe.name!r}, …)`; the keyword arguments are the method's constants.",
        "## The estimator",
        "From the reward to the credit of a token; P prompts, G rollouts, T positions, K segments, N agents.",
        f"```text\n{creditjax.explain(recipe.estimator)}\n```",
    ]
    if recipe.batch_statistics:
        blocks.append("It uses statistics of the whole batch: the credit of a rollout depends on other prompts.")
    if recipe.signals:
        said = (
            "Beside the fields of the batch, which come with the rollouts, it reads these; the last column makes them."
        )
        blocks += ["## Signals", said, _signals(recipe)]
    blocks += ["## Loss and rollouts", f"```text\n{_broken(str(recipe.objective))}\n```", _sampler(recipe.sampler)]
    blocks += ["## What holds", _laws(recipe)]
    if command := _command(recipe, trained):
        blocks += ["## Train with it", f"    {command}", "On which tasks it runs: [](../where_recipes_train.md)."]
    return "\n\n".join(blocks) + "\n"


def _signals(recipe: Recipe) -> str:
    rows = []
    for name in recipe.signals:
        spec = creditjax.signal_spec(name)
        required = "" if name in recipe.needs else " (if there)"
        rows.append(
            (f"`{name}`{required}", f"`{spec.dtype} [{', '.join(spec.axes)}]`", spec.meaning, _code(spec.producer))
        )
    return _table(("signal", "shape", "meaning", "made by"), rows)


def _sampler(sampler: Sampler) -> str:
    usual = Sampler(group_size=sampler.group_size)
    asked = [f"`{key} = {value!r}`" for key, value in sampler._asdict().items() if value != getattr(usual, key)]
    more = f" It asks the sampler for {', '.join(asked)} ({{py:class}}`~creditjax.recipes.Sampler`)." if asked else ""
    return f"The paper's groups have {sampler.group_size} rollouts; the config decides.{more}"


def _laws(recipe: Recipe) -> str:
    claimed = [
        f"{name.replace('_', ' ')}{f' ({_arguments(given)})' if given else ''}" for name, given in recipe.claims.items()
    ]
    lines = [
        f"It claims to be {', '.join(claimed)}." if claimed else "It claims no law of credit.",
        "What was found of every law, with counterexamples: [](../properties.md).",
    ]
    lines += [f"It does not keep the promise *{name.replace('_', ' ')}*: {why}." for name, why in recipe.exempt.items()]
    return " ".join(lines)


def _command(recipe: Recipe, trained: dict[tuple[str, str], str]) -> str:
    """The command that trains with the recipe on the first task on which that was seen to run."""
    task = next((task for task in COMMANDS if trained.get((recipe.name, task)) == "trains"), None)
    if task is None:
        return ""
    flags = {"recipe.name": recipe.name} | (make_trained.STEPS if task == "words" else {})
    if task == "words" and "segment" not in recipe.needs:
        flags = {"recipe.name": recipe.name}
    overrides = [f"--config.{key}={shlex.quote(str(value))}" for key, value in flags.items()]
    config = f"--config={COMMANDS[task]}"
    words = ["python -m experiments.train", config, *overrides, f"--workdir=runs/{recipe.name}"]
    return " \\\n        ".join(words)


def _index() -> str:
    """All methods by family, recipes and others."""
    blocks = ["# Methods"]
    blocks.append(
        "Every method of the library. A name that links is a recipe: `creditjax.recipe(name)`. Others are a metric, "
        "a model, a sampler or a task. [](which.md) helps to choose."
    )
    known = set(creditjax.list_recipes())
    for family, title in FAMILIES.items():
        rows = []
        for card in sorted((card for card in cards().values() if card.family == family), key=lambda card: card.id):
            name = f"[{card.id}]({card.id}.md)" if card.id in known else card.id
            what = _names(creditjax.recipe(card.id).needs) if card.id in known else f"`{card.symbol}`"
            rows.append((name, card.name, card.granularity, what))
        heads = ("method", "name in the paper", "credit to", "reads, or what it is")
        blocks += [f"## {title}", _table(heads, rows)]
    blocks.append("\n".join(["```{toctree}", ":hidden:", "", "which", *sorted(known), "```"]))
    return "\n\n".join(blocks) + "\n"


def _which() -> str:
    """Recommendations for `SITUATIONS`."""
    survey = make_tables.paper_link("arXiv:2604.09459", "")
    blocks = [
        "# Which method for my problem?",
        "{py:func}`creditjax.recommend` asks, in this order, whether steps are judged, whether one can branch, and "
        "whether a critic can be trained, and lists the recipes whose signals are there. The questions are those of "
        f"the survey {survey}; within an answer the best known come first, then those that cost nothing beyond the "
        "rollouts, then the others, each of these by name. Here is what it says to common situations.",
    ]
    for question, asked in SITUATIONS:
        call = f"creditjax.recommend({_arguments(asked)})"
        blocks += [f"## {question}", f"```python\n{call}\n```"]
        for path, found in itertools.groupby(creditjax.recommend(**asked), lambda found: found.path):
            first = [(f"[{r.recipe}]({r.recipe}.md)", r.cost) for r in found]
            more = f"And {', '.join(name for name, _ in first[SHOWN:])}." if len(first) > SHOWN else ""
            blocks += [f"Because {'; '.join(path)}:", _table(("recipe", "costs"), first[:SHOWN]), *filter(None, [more])]
    return "\n\n".join(blocks) + "\n"


def _code(text: str) -> str:
    """The text with its dotted names as code."""
    return re.sub(r"\bcreditjax(\.\w+)+", r"`\g<0>`", text)


def _broken(text: str, width: int = 80) -> str:
    """A long representation over several lines, broken after commas."""
    lines = [""]
    for part in re.split(r"(?<=, )", text):
        if lines[-1].strip() and len(lines[-1]) + len(part) > width:
            lines.append("    ")
        lines[-1] += part
    return "\n".join(map(str.rstrip, lines))


def _arguments(given: dict) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in given.items())


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(make_tables.cell(text) for text in line)} |" for line in lines)
