"""Writes the sample documents of the package and the evaluation set over them.

    python samples/make_samples.py

The documents go to budgetvdr/samples/, the questions to tests/data/samples_eval/. Running it twice gives the same
bytes. All text is written for this project; company, people and places are invented. Needs reportlab, pillow, numpy and
pypdfium2.
"""

from __future__ import annotations

import json
from pathlib import Path

from handbook import HANDBOOK
from layout import draw
from questions import HANDBOOK as HANDBOOK_NAME
from questions import QUESTIONS, REPORT, SCAN
from report import report
from scan import scan

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ROOT / "budgetvdr" / "samples"
EVALUATION = ROOT / "tests" / "data" / "samples_eval"


def write_documents(folder: Path) -> list[Path]:
    """Writes the three PDFs into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, data in ((HANDBOOK_NAME, draw(HANDBOOK)), (REPORT, draw(report())), (SCAN, scan())):
        (folder / name).write_bytes(data)
        written.append(folder / name)
    return written


def write_evaluation(folder: Path) -> None:
    """Writes queries.jsonl and qrels.tsv: grade 2 for the page that answers, 1 for a page that helps."""
    folder.mkdir(parents=True, exist_ok=True)
    queries, qrels = [], ["query\tdoc\tpage_num\trelevance"]
    for number, question in enumerate(QUESTIONS, start=1):
        name = f"sample-{number:02}"
        query = {"id": name, "text": question.text} | ({"doc": question.doc} if question.scoped else {})
        queries.append(json.dumps(query))
        qrels.append(f"{name}\t{question.doc}\t{question.page_num}\t2")
        qrels += [f"{name}\t{question.doc}\t{page}\t1" for page in question.helps]
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n", encoding="utf-8")
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")


def main() -> None:
    """Writes everything to its place in the repository and says what was written."""
    for path in write_documents(DOCUMENTS):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    write_evaluation(EVALUATION)
    # The set names its documents by the folder the package ships, instead of holding them twice.
    pdfs = EVALUATION / "pdfs"
    if not pdfs.is_symlink():
        pdfs.symlink_to(Path("../../../budgetvdr/samples"), target_is_directory=True)
    print(f"{EVALUATION.relative_to(ROOT)}  {len(QUESTIONS)} questions")


if __name__ == "__main__":
    main()
