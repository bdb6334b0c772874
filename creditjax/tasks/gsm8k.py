"""GSM8K (Cobbe et al., 2021, arXiv:2110.14168) through TFDS, from a local copy of its two files.

    python -m creditjax.tasks.gsm8k --source=DIR --out=DIR

reads ``DIR/train.jsonl`` and ``DIR/test.jsonl`` (one object a line with `question` and `answer`, which ends in ``####
N``) and writes a TFDS data set in array_record files, which `GSM8KTask` then reads by index. Neither needs TensorFlow
or a network.
"""

import decimal
import functools
import json
import pathlib
import re
from typing import Any

import numpy as np

from creditjax.tasks.graded import GradedTask, Item
from creditjax.tasks.tokenizer import ASCII, CharTokenizer, Tokenizer

# Every character that occurs in GSM8K.
ALPHABET = ASCII + "\t\u00a0\u200b\u2028¢£³¼½¾×çèéñ÷\u0410–—‘’“”€−√"
_FILES = {"train": "train.jsonl", "test": "test.jsonl"}
_VERSION = "1.0.0"
_NUMBER = re.compile(r"[-+\u2212]?\s*\$?\s*(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


def final_number(text: str, marked: bool = True) -> decimal.Decimal | None:
    """The final answer in a solution: the number after the last ``####``, None where there is none.

    A sign, a dollar sign, thousands' commas and decimals are understood; 72, 72.0 and +72 are the same number.

    Args:
      text: a solution.
      marked: whether the answer has to be marked by ``####``; otherwise the last number of an unmarked text counts.

    >>> final_number("so 1,200 + 34.50 = #### $1,234.50")
    Decimal('1234.50')
    """
    head, marker, tail = text.rpartition("####")
    if marker:
        match = _NUMBER.match(tail.lstrip())
    elif marked:
        return None
    else:
        match = None
        for match in _NUMBER.finditer(tail):  # noqa: B007 - the last one is wanted
            pass
    if match is None:
        return None
    digits = re.sub(r"[\s$,]", "", match.group()).replace("\u2212", "-")
    return decimal.Decimal(digits)


def read_jsonl(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows of one file of GSM8K.

    Raises:
      ValueError: a line that is no JSON object with `question` and `answer`, or whose answer has no final number, by
        its number.
    """
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                row = {name: row[name] for name in ("question", "answer")}
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: wanted an object with question and answer: {error!r}") from None
            if not all(isinstance(value, str) for value in row.values()):
                raise ValueError(f"{path}:{number}: question and answer must be strings")
            if final_number(row["answer"]) is None:
                raise ValueError(f"{path}:{number}: the answer does not end in '#### N'")
            rows.append(row)
    return rows


@functools.cache
def builder_class():
    """The TFDS builder: splits train and test, features question and answer, array_record files."""
    import tensorflow_datasets as tfds

    class Gsm8k(tfds.core.GeneratorBasedBuilder):
        """Grade-school maths word problems with worked solutions."""

        VERSION = tfds.core.Version(_VERSION)
        MANUAL_DOWNLOAD_INSTRUCTIONS = "A directory with train.jsonl and test.jsonl."
        url_infos: dict = {}  # nothing is downloaded, so there are no checksums to look for

        def _info(self):
            features = tfds.features.FeaturesDict({"question": tfds.features.Text(), "answer": tfds.features.Text()})
            # Row i of a split is line i of its file.
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(dl_manager.manual_dir / name) for split, name in _FILES.items()}

        def _generate_examples(self, path):
            yield from enumerate(read_jsonl(pathlib.Path(path)))

    return Gsm8k


def prepare(source_dir: str | pathlib.Path, data_dir: str | pathlib.Path) -> pathlib.Path:
    """Writes GSM8K as a TFDS data set under `data_dir`; does nothing if it is there already.

    Returns:
      the directory of the prepared data set.

    Raises:
      FileNotFoundError: `source_dir` lacks one of the files.
      ValueError: a file has a line that is not a row of GSM8K.
    """
    import tensorflow_datasets as tfds

    source = pathlib.Path(source_dir).expanduser().resolve()
    absent = [name for name in _FILES.values() if not (source / name).is_file()]
    if absent:
        raise FileNotFoundError(f"source: {source} has no {' and no '.join(absent)}")
    for name in _FILES.values():  # before the builder runs, which would report a bad line far less clearly
        read_jsonl(source / name)
    builder = builder_class()(data_dir=str(pathlib.Path(data_dir).expanduser()), file_format="array_record")
    config = tfds.download.DownloadConfig(manual_dir=str(source), try_download_gcs=False)
    builder.download_and_prepare(download_config=config)
    return pathlib.Path(builder.data_dir)


def data_source(data_dir: str | pathlib.Path, split: str) -> Any:
    """Random access to a prepared split through ``tfds.data_source``; rows hold bytes.

    Raises:
      FileNotFoundError: nothing is prepared there; the message says what to run.
    """
    import tensorflow_datasets as tfds

    root = pathlib.Path(data_dir).expanduser()
    if not (root / "gsm8k" / _VERSION / "dataset_info.json").is_file():
        raise FileNotFoundError(
            f"data_dir: no prepared GSM8K in {root}. Run: python -m creditjax.tasks.gsm8k --source=DIR --out={root} "
            "where DIR holds train.jsonl and test.jsonl"
        )
    builder_class()  # registers the name, so that TFDS has nothing to look up elsewhere
    return tfds.data_source(f"gsm8k:{_VERSION}", split=split, data_dir=str(root), download=False)


class GSM8KTask(GradedTask):
    """A `TextTask` over GSM8K: the question is the prompt, the worked solution the gold response.

    The training split is endless: epoch after epoch, each in an order of its own that depends on `seed` alone. The
    held-out split is the test set in its order. Rows whose question or solution does not fit, or whose solution the
    tokenizer cannot spell, are left out of both.

    A response scores 1 if its final number (see `final_number`) equals the reference's, else 0.

    Attributes:
      skipped: how many rows of each split do not fit.
    """

    def __init__(
        self,
        data_dir: str,
        *,
        max_prompt: int = 512,
        max_answer: int = 512,
        tokenizer: Tokenizer | None = None,
        eval_size: int | None = None,
        marked: bool = True,
        format_weight: float = 0.0,
        step_length: int | None = None,
        seed: int = 0,
    ):
        """Opens the prepared data set and measures its rows.

        Args:
          data_dir: what `prepare` wrote to.
          max_prompt: L, the most tokens of a question.
          max_answer: the most tokens of a response, its end included.
          tokenizer: character-level over `ALPHABET` by default.
          eval_size: number of held-out prompts, all that fit by default.
          marked: whether the answer has to be marked by ``####``.
          format_weight: share of the outcome that is paid for stopping in time.
          step_length: positions of a step, each a segment; None for one segment, the response.
          seed: of the order of the training prompts.

        Raises:
          FileNotFoundError: nothing is prepared in `data_dir`.
          ValueError: no row fits, or fewer test rows than `eval_size`.
        """
        super().__init__(
            tokenizer=CharTokenizer(ALPHABET) if tokenizer is None else tokenizer,
            max_prompt=max_prompt,
            max_answer=max_answer,
            eval_size=1 if eval_size is None else eval_size,
            binary=True,
            format_weight=format_weight,
            step_length=step_length,
        )
        self._sources = {split: data_source(data_dir, split) for split in _FILES}
        self._rows = {split: self._fitting(split) for split in _FILES}
        self.skipped = {split: len(self._sources[split]) - len(self._rows[split]) for split in _FILES}
        for split, rows in self._rows.items():
            if not len(rows):
                raise ValueError(f"no row of {split} fits max_prompt={max_prompt} and max_answer={max_answer}")
        fitting = len(self._rows["test"])
        self.eval_size = fitting if eval_size is None else eval_size
        if self.eval_size > fitting:
            raise ValueError(f"eval_size: {eval_size}, but only {fitting} test rows fit")
        self._marked = marked
        self._order = functools.lru_cache(4)(
            lambda epoch: np.random.default_rng([seed, epoch]).permutation(self._rows["train"])
        )

    def _fitting(self, split: str) -> np.ndarray:
        def fits(row) -> bool:
            question, answer = (self.tokenizer.encode(row[name].decode()) for name in ("question", "answer"))
            fits = len(question) <= self.prompt_length and len(answer) < self.turns.action_length
            return fits and self.tokenizer.decode(answer) == row["answer"].decode()

        return np.flatnonzero([fits(row) for row in self._sources[split]])

    def _key(self, split: str, index: int) -> int:
        # The test set's keys come after the training set's.
        if split == "eval":
            return len(self._sources["train"]) + int(self._rows["test"][index])
        epoch, position = divmod(index, len(self._rows["train"]))
        return int(self._order(epoch)[position])

    def _make_item(self, key: int) -> Item:
        size = len(self._sources["train"])
        row = self._sources["train"][key] if key < size else self._sources["test"][key - size]
        return Item(row["question"].decode(), row["answer"].decode())

    def _grade_text(self, key: int, response: str) -> float:
        wanted = final_number(self._item(key).answer)
        return float(final_number(response, self._marked) == wanted)


def main(argv: list[str]) -> None:
    """Prepares GSM8K from the command line."""
    del argv
    print(prepare(_SOURCE.value, _OUT.value))


if __name__ == "__main__":
    from absl import app, flags

    _SOURCE = flags.DEFINE_string("source", None, "Directory with train.jsonl and test.jsonl.", required=True)
    _OUT = flags.DEFINE_string("out", None, "Directory to write the TFDS data set to.", required=True)
    app.run(main)
