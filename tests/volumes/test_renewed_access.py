"""Buckets elsewhere than was said, credentials that expire, certificates of somebody else."""

import datetime
import http.server
import ssl
import threading

import numpy as np
import pytest
from s3_server import Fault, S3Server

from voxpipe.core.errors import AccessDenied, StoreUnavailable, VolumeReadError
from voxpipe.storage.remote import open_remote
from voxpipe.storage.retry import Retry
from voxpipe.volumes import Volume, close_volumes

QUICK = Retry(deadline=2.0, first=0.001, most=0.002)


def test_a_bucket_in_another_region_is_found(tmp_path, client, started_clients):
    """S3 says where it is: the client goes there, without a word of the user."""
    (tmp_path / "far").mkdir()
    np.save(tmp_path / "far" / "a.npy", np.arange(24).reshape(2, 3, 4))
    with S3Server(tmp_path, region="eu-west-1") as server:
        volume = Volume("s3://far/a.npy", storage_options=server.storage_options)
        assert volume.numpy().sum() == 276
        assert {line.status for line in server.requests} >= {301, 206}
        close_volumes()


def credentials(file, server, secret):
    """Write a profile as a tool does that rotates keys."""
    file.write_text(
        f"[lab]\naws_access_key_id = {server.storage_options['key']}\n"
        f"aws_secret_access_key = {secret}\naws_session_token = token-{secret}\n"
    )


@pytest.mark.parametrize("how", ["expired", "deny"])
def test_credentials_that_expire_are_read_anew_once(server, client, monkeypatch, tmp_path, how):
    """A profile that was renewed meanwhile goes on; one that was not is refused."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    credentials(file, server, "first")
    seen = tokens_of(server, monkeypatch)
    (server.bucket / "a").write_bytes(b"abc")
    options = {"profile": "lab", "endpoint_url": server.url}
    store = open_remote("s3://bucket", options, QUICK)
    assert bytes(store.get("a")) == b"abc"
    credentials(file, server, "second")
    server.forget()
    server.fail(Fault(how, times=1 if how == "expired" else None))

    if how == "expired":
        assert bytes(store.get("a")) == b"abc"
        assert len(server.requests) == 2
        assert seen[-1] == "token-second"
        server.fail(Fault("expired"))
    with pytest.raises(AccessDenied) as told:
        store.get("a")

    assert "token-" not in str(told.value)
    assert "second" not in str(told.value)
    # A refusal may be of another host: it is asked for again, then a redirect is looked for.
    assert len(server.requests) == (4 if how == "expired" else 3)


def tokens_of(server, monkeypatch):
    """Return a list of the session tokens that requests bring."""
    seen = []
    fault = server._fault

    def noted(question):
        seen.append(question.headers.get("x-amz-security-token", ""))
        return fault(question)

    monkeypatch.setattr(server, "_fault", noted)
    return seen


@pytest.fixture
def stranger(tmp_path):
    """Serve with a certificate that nobody believes, and yield its URL."""
    cryptography = pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    assert cryptography
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + DAY)
    made = made.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "own.pem").write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")
    server = Quiet(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


DAY = datetime.timedelta(days=1)


class Quiet(http.server.HTTPServer):
    """Says nothing of handshakes that fail."""

    def handle_error(self, request, client_address):
        pass


@pytest.mark.parametrize("kind", ["s3", "https"])
def test_a_certificate_that_nobody_believes_is_refused(stranger, client, kind, monkeypatch):
    """By name, soon, and with what to do; neither key nor signature is said."""
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    options = {"key": "AKSECRET", "secret": "very-secret", "endpoint_url": stranger}
    url = "s3://bucket/a.npy" if kind == "s3" else f"{stranger}/a.npy?sig=very-secret"
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "3")

    with pytest.raises(VolumeReadError, match=r"(?i)certificate") as told:
        _ = Volume(url, storage_options=options if kind == "s3" else None).shape

    assert not isinstance(told.value, StoreUnavailable)
    assert "SECRET" not in str(told.value)
    assert "very-secret" not in str(told.value)
