"""Manifests of volumes that tests write."""

from voxpipe.volumes import Finding, Manifest, Volume, describe_each, sources_of, write_entries
from voxpipe.volumes.catalog.manifest import Entry


def index_cases(volumes, *, statistics=True, previous=None):
    """Return the manifest of volumes, and the findings for unreadable ones.

    Volumes come as ``(case, key, volume)``, grouped by case; a case with a bad volume is left out.
    Entries of an earlier manifest are kept without reading where the volume is unchanged.
    """
    before = {(e.case, e.key, e.location): e for e in previous.entries} if previous else {}
    every = [*describe_each(volumes, lambda *place: filter(None, [before.get(place)]), statistics)]
    bad = tuple(one for one in every if isinstance(one, Finding))
    left_out = {finding.case for finding in bad}
    entries = (one for one in every if isinstance(one, Entry) and one.case not in left_out)
    return Manifest(tuple(entries)), bad


def write_manifest(manifest, location, storage_options=None):
    """Write a manifest to a path or URL, whole or not at all; as Parquet if it ends so."""
    entries = (e for n in range(manifest.case_count) for e in manifest.case(n)[1])
    write_entries(entries, location, storage_options)


def volume_of(entry, manifest="manifest"):
    """Return the volume of an entry of a manifest."""
    return Volume.of_source(sources_of(manifest, {})(entry), entry.kind)
