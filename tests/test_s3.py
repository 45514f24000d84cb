"""An index in a bucket, on an S3 server that the tests start on loopback."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from conftest import MakePdf
from store_pages import SETTINGS, document, page_row

from budgetvdr import Index
from budgetvdr.encoders import Encoder
from budgetvdr.errors import QueryError, ReadOnlyError, SourceNotFoundError, StorageError
from budgetvdr.store import PageCodes, RoutesError, Store, Training, engine, routes

pytest.importorskip("moto.server", reason="needs moto and flask, which the extra 'dev' brings")

REGION = "us-east-1"
# Creating the user, allowing it everything and giving it a key; whatever comes after needs that key.
FREE_REQUESTS = b"3"
WRITER = """
import json, sys
from store_pages import SETTINGS, document
from budgetvdr.store import Store
uri, options, name, rounds = sys.argv[1:]
store = Store.open(uri, settings_if_new=SETTINGS, storage_options=json.loads(options))
for step in range(int(rounds)):
    doc_id, revision = (name, "shared")[step % 2], f"{name}-{step}"
    store.upsert(document(doc_id, range(1, 3 + step % 3), revision), complete={doc_id: revision})
store.delete_documents([name])
store.upsert(document(name, range(1, 4), "last"))
"""


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server that checks credentials."""

    uri: str
    options: dict[str, str]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        place = {"endpoint_url": f"http://{host}:{port}", "region_name": REGION}
        reset = f"{place['endpoint_url']}/moto-api/reset-auth"
        urllib.request.urlopen(urllib.request.Request(reset, FREE_REQUESTS, {"Content-Type": "text/plain"})).close()
        iam = boto3.client("iam", **place, aws_access_key_id="any", aws_secret_access_key="any")
        iam.create_user(UserName="tester")
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName="tester")["AccessKey"]
        secrets = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
        boto3.client("s3", **place, **secrets).create_bucket(Bucket="bucket")
        options = {"endpoint": place["endpoint_url"], "region": REGION, "allow_http": "true"} | secrets
        yield Bucket("s3://bucket", options)
    finally:
        server.stop()


HANDBOOK = (
    "Travel in premium economy is allowed for flights of more than six hours.",
    "Parental leave is twenty weeks for every employee.",
)


def test_an_index_lives_in_a_bucket(bucket: Bucket, encoder: Encoder, make_pdf: MakePdf) -> None:
    uri = f"{bucket.uri}/index"
    handbook, manual = make_pdf("handbook.pdf", *HANDBOOK), make_pdf("manual.pdf", "Report a lost laptop within a day.")
    with Index.open(uri, encoder=encoder, storage_options=bucket.options) as index:
        index.add_pages([handbook, manual])
        assert [hit.id for hit in index.search("How long is parental leave?", k=1)] == ["handbook.pdf#2"]
        before = index.info().version
        assert index.add_pages([handbook, manual]).pages == 0
        assert index.info().version == before
        make_pdf("manual.pdf", "Bicycles are parked in the cellar.")
        assert index.add_pages(manual).files[0].status == "updated"
        assert [hit.id for hit in index.search("bicycles", k=1, budget="fast")] == ["manual.pdf#1"]
        assert index.delete(doc_id=["handbook.pdf", "not there"]) == 2
        assert [document.doc_id for document in index.documents()] == ["manual.pdf"]
        assert index.optimize(keep=timedelta(0)).versions_after <= 2
        info = index.info()
        assert (info.pages, info.path) == (1, uri)
        assert info.version > before
        assert info.bytes_on_disk == info.current_bytes > info.vector_bytes > 0
    # What was written is found by whoever opens it next, and nothing is written by one who only reads.
    with Index.open(uri, encoder=encoder, storage_options=bucket.options, read_only=True) as index:
        assert [hit.id for hit in index.search("bicycles")] == ["manual.pdf#1"]
        with pytest.raises(ReadOnlyError):
            index.add_pages(handbook)
    with pytest.raises(SourceNotFoundError, match="no index at"):
        Index.open(f"{bucket.uri}/none", encoder=encoder, storage_options=bucket.options, create=False)


def test_a_bucket_is_read_as_it_was(bucket: Bucket, encoder: Encoder, make_pdf: MakePdf) -> None:
    uri = f"{bucket.uri}/versions"
    with Index.open(uri, encoder=encoder, storage_options=bucket.options) as index:
        index.add_pages(make_pdf("travel.pdf", HANDBOOK[0]))
        first = index.info().version
        index.add_pages(make_pdf("leave.pdf", HANDBOOK[1]))
        assert [entry.pages for entry in index.versions()][-2:] == [1, 2]
        with Index.open(uri, encoder=encoder, storage_options=bucket.options, version=first) as old:
            assert [hit.id for hit in old.search("leave")] == ["travel.pdf#1"]
            with pytest.raises(ReadOnlyError, match=f"version {first}"):
                old.delete(doc_id="travel.pdf")
    with pytest.raises(SourceNotFoundError, match=f"no version 99 .* 1-{first + 1}"):
        Index.open(uri, encoder=encoder, storage_options=bucket.options, version=99)


def test_two_processes_write_to_a_bucket_at_once(bucket: Bucket) -> None:
    uri = f"{bucket.uri}/shared"
    options = json.dumps(bucket.options)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, uri, options, name, "8"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])},
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("left", "right")
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert (writer.returncode, errors) == (0, "")
    store = Store.open(uri, storage_options=bucket.options)
    snapshot = store.snapshot()
    pages = snapshot.facts(snapshot.matching())
    assert len({found.id for found in pages}) == len(pages)
    for name in ("left", "right"):
        assert store.document_state(name).revisions == {1: "last", 2: "last", 3: "last"}
    assert len(set(store.document_state("shared").revisions.values())) == 1
    assert {info.doc_id for info in snapshot.documents()} == {"left", "right", "shared"}
    assert sum(int(slab.offsets[-1]) for slab in snapshot.scan(2, 128)) == snapshot.vector_count()


def test_many_small_writes_to_a_bucket_stay_few_fragments(bucket: Bucket) -> None:
    with Store.open(f"{bucket.uri}/small", settings_if_new=SETTINGS, storage_options=bucket.options) as store:
        for number in range(50):
            store.upsert([page_row(f"doc{number}", 1)])
        assert store.snapshot().stats().fragments < 40
        assert store.snapshot().page_count() == 50
        with pytest.raises(QueryError, match="nope"):
            store.delete_where("nope = 1")


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_bucket_that_cannot_be_used_says_why_and_soon(bucket: Bucket) -> None:
    def opening(uri: str, **changed: str) -> None:
        Store.open(uri, settings_if_new=SETTINGS, storage_options=bucket.options | changed)

    with pytest.raises(StorageError, match=r"cannot open s3://nobody/x: NoSuchBucket.*create it first"):
        opening("s3://nobody/x")
    with pytest.raises(StorageError, match=r"SignatureDoesNotMatch.*check the credentials"):
        opening(f"{bucket.uri}/x", aws_secret_access_key="wrong")
    with pytest.raises(StorageError, match=r"InvalidAccessKeyId.*check the credentials"):
        opening(f"{bucket.uri}/x", aws_access_key_id="wrong")
    with pytest.raises(StorageError, match=r"Connection refused; check the endpoint"):
        opening(f"{bucket.uri}/x", endpoint=f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(StorageError, match=r"allow_http"):
        opening(f"{bucket.uri}/x", allow_http="false")


def test_a_server_that_goes_away_is_a_typed_error(bucket: Bucket) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(20)
        options = bucket.options | {
            "endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "timeout": "100ms",  # a limit that the caller sets is kept
            "client_max_retries": "0",
        }
        with pytest.raises(StorageError, match=r"TimedOut; check the endpoint"):
            Store.open(f"{bucket.uri}/x", storage_options=options)


def test_documents_of_a_bucket_are_whole_in_every_version(bucket: Bucket) -> None:
    with Store.open(f"{bucket.uri}/whole", settings_if_new=SETTINGS, storage_options=bucket.options) as store:
        for step in range(4):
            store.upsert(document("a", range(1, 5 - step), f"r{step}"), complete={"a": f"r{step}"})
        for entry in store.versions()[1:]:
            with Store.open(store.uri, version=entry.version, storage_options=bucket.options) as old:
                revisions = old.document_state("a").revisions
                assert len(set(revisions.values())) == 1
                assert len(revisions) == entry.pages


def test_routes_lie_in_the_bucket_too(bucket: Bucket) -> None:
    with Store.open(f"{bucket.uri}/routes", settings_if_new=SETTINGS, storage_options=bucket.options) as store:
        store.upsert(document("a", [1, 2]))
        assert store.snapshot().routes(6) is None
        snapshot = store.snapshot()
        stamps = snapshot.stamps(snapshot.matching("page_num = 2"))
        pages = PageCodes(snapshot.identity, stamps, np.array([0, 3]), np.array([4, 0, 4], np.uint16))
        store.write_routes(6, pages, np.eye(5, dtype=np.float32), Training(1, 0.0))
        found = store.snapshot().routes(6)
        assert found is not None
        assert (found.known.tolist(), found.offsets.tolist(), found.codes.tolist()) == (
            [False, True],
            [0, 0, 3],
            [4, 0, 4],
        )


def test_damaged_routes_are_told_from_a_server_that_is_gone(bucket: Bucket) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    secrets = {key: bucket.options[key] for key in ("aws_access_key_id", "aws_secret_access_key")}
    client = boto3.client("s3", endpoint_url=bucket.options["endpoint"], region_name=REGION, **secrets)
    with Store.open(f"{bucket.uri}/damaged", settings_if_new=SETTINGS, storage_options=bucket.options) as store:
        store.upsert(document("a", [1, 2]))
        snapshot = store.snapshot()
        stamps = snapshot.stamps(snapshot.matching())
        pages = PageCodes(snapshot.identity, stamps, np.array([0, 1, 2]), np.zeros(2, np.uint16))
        store.write_routes(6, pages, np.eye(5, dtype=np.float32), Training(1, 0.0))
        # Another server of the same buckets, which then goes away.
        other = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        other.start()
        host, port = other.get_host_and_port()
        gone = engine.connect(store.uri, bucket.options | {"endpoint": f"http://{host}:{port}"})
        other.stop()
        with pytest.raises(StorageError, match=r"HTTP error.*check the endpoint") as caught:
            routes.read(gone, 6, snapshot.matching(), stamps, identity=snapshot.identity)
        assert not isinstance(caught.value, RoutesError)
        with pytest.raises(StorageError):
            routes.exists(gone, 6, identity=snapshot.identity)
        listed = client.list_objects_v2(Bucket="bucket", Prefix="damaged/routes_6.lance/data/")["Contents"]
        for entry in listed:
            client.delete_object(Bucket="bucket", Key=entry["Key"])
        with pytest.raises(RoutesError, match="damaged"):
            snapshot.routes(6)
        store.drop_routes(6)
        assert snapshot.routes(6) is None
