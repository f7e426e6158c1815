"""Cases that were given no name get one that tells them apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.datapipes import case_names
from voxpipe.datapipes.case_names import names_of


def names(*paths):
    return [s.case for s in vp.from_cases([{"image": path} for path in paths])]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a/ct_1.nii", "a/ct_2.nii"], ["ct_1", "ct_2"]),
        (["p0/ct.nii", "p1/ct.nii"], ["p0", "p1"]),
        (["s3://b/sub-1/ses/ct.nii", "s3://b/sub-2/ses/ct.nii"], ["sub-1", "sub-2"]),
        (["x/a/1/ct.nii", "x/a/2/ct.nii", "x/b/1/ct.nii"], ["a/1", "a/2", "b/1"]),
        (["p0/ct.nii", "p0/ct.nii.gz"], ["ct#0", "ct#1"]),
        (["ct.nii", "p1/ct.nii"], ["ct#0", "ct#1"]),
        (["p0/ct.nii", "p1/ct.nii", "p1.nii"], ["ct#0", "ct#1", "p1"]),
        (["p0/a.mha", "p0/b.tif", "c.img.gz", "d.ome.zarr"], ["a", "b", "c", "d"]),
        (["p0/1.2.840", "p0/1.2.841", "p0/ct.v2.nii.gz"], ["1.2.840", "1.2.841", "ct.v2"]),
        (["p0/a.nii", "p1/a.nii", "p0/b.nii", "p1/b.nii"], ["p0", "p1", "b#2", "b#3"]),
    ],
)
def test_names_are_unique(paths, expected):
    """The file's name where it is the only one, else what differs in the folders, else a number."""
    assert names(*paths) == expected


def test_an_open_volume_is_called_by_its_file():
    """As its path would be; voxels in memory have a number."""
    volumes = [vp.Volume("p0/ct.nii.gz"), vp.Volume("p1/ct.nii.gz"), vp.Volume(np.zeros((1, 1, 1)))]

    assert names(*volumes) == ["p0", "p1", "2"]


def test_names_that_were_given_stay():
    """Who names cases alike gets them alike."""
    cases = [{"case": "c", "image": "a.nii"}, {"case": "c", "image": "b.nii"}, {"image": "c.nii"}]

    assert [s.case for s in vp.from_cases(cases)] == ["c", "c", "c#2"]


def test_a_sequence_of_its_own_is_asked_once_for_each_case():
    """Making a case may be dear; its file names it."""

    class Cases:
        asked = 0

        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index >= 2:
                raise IndexError
            self.asked += 1
            return {"image": f"p{index}/ct.nii"}

    cases = Cases()

    assert [s.case for s in vp.from_cases(cases)] == ["ct", "ct"]
    assert cases.asked == 2


def files_below(folder, *names):
    for name in names:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


@pytest.mark.parametrize(
    ("image", "label", "files"),
    [
        # Of the first star, and of the second: "b" in both ways.
        ("*_ct_*.nii", "*_seg_*.nii", ("b_ct_.nii", "_seg_b.nii")),
        ("*_s?_ct.nii", "*_s?_seg.nii", ("p1_s1_ct.nii", "p1_s2_seg.nii")),
        ("p*[ab]_ct.nii", "p*[ab]_seg.nii", ("p1a_ct.nii", "p1b_seg.nii")),
    ],
)
def test_volumes_of_two_cases_are_no_pair(tmp_path, image, label, files):
    """Where one name is made in two ways, both paths are named instead of mixing two cases."""
    files_below(tmp_path, *files)

    with pytest.raises(SampleError, match="of two cases") as error:
        list(vp.list_cases(image=f"{tmp_path}/{image}", label=f"{tmp_path}/{label}"))

    assert all(name in str(error.value) for name in files)


@pytest.mark.parametrize(
    ("pattern", "files"),
    [("*_ct_*.nii", ("b_ct_.nii", "_ct_b.nii")), ("p*[ab].nii", ("p1a.nii", "p1b.nii"))],
)
def test_two_files_of_one_name_are_told_with_both_and_why(tmp_path, pattern, files):
    """A question mark is no part of a name, nor is which of two stars stands for nothing."""
    files_below(tmp_path, *files)

    with pytest.raises(SampleError, match=r"is no part of it") as error:
        list(vp.list_cases(image=f"{tmp_path}/{pattern}"))

    assert all(name in str(error.value) for name in files)


def test_spellings_of_one_word_are_a_pair(tmp_path):
    """What differs between the patterns of two keys tells no cases apart."""
    files_below(tmp_path, "p1_T1.nii", "p1_seg.nii", "p2_t1.nii", "p2_seg.nii")

    pipe = vp.list_cases(image=f"{tmp_path}/*_[Tt]1.nii", label=f"{tmp_path}/*_seg.nii")

    assert [sample.case for sample in pipe] == ["p1", "p2"]


@pytest.mark.parametrize("folder", ["q?", "q[12]"])
def test_folders_before_the_star_are_part_of_the_name(tmp_path, folder):
    """Wherever the first wildcard stands: of two folders, each has a case of its own."""
    files_below(tmp_path, "q1/abcdef/ct.nii", "q2/abcdef/ct.nii")

    pipe = vp.list_cases(f"{tmp_path}/{folder}/*/", image="ct.nii")

    assert [sample.case for sample in pipe] == ["q1/abcdef", "q2/abcdef"]


NAMES = st.sampled_from(["a", "b", "ct", "s1", "a.b", "s", "S1", ""])
ENDS = st.sampled_from([".nii", ".nii.gz", "", ".ome.zarr", "/", ".NII", ".v2"])
PATHS = st.builds(
    lambda folders, name, end: "/".join([*folders, name + end]),
    st.lists(NAMES, max_size=3),
    NAMES,
    ENDS,
)
ALIKE = st.lists(NAMES, max_size=3).map(lambda folders: "/".join([*folders, "ct.nii"]))
LISTS = st.one_of(*[st.lists(paths, min_size=1, max_size=6) for paths in (PATHS, ALIKE)])


@given(LISTS, st.sampled_from([0, 1, 64]), st.sets(st.integers(0, 5), max_size=2), st.randoms())
def test_many_cases_have_the_names_of_few(paths, searches, named, random):
    """Names that are found without a look at each case are those of :func:`names_of`."""
    cases = [{"image": path, "label": 1} for path in paths]
    for number in named & {*range(len(cases))}:
        cases[number] = random.choice(
            [{"case": "s1"}, {"label": "b", **cases[number]}, {}, {"n": 1}]
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_names, "_MOST_SEARCHES", searches)
        pipe = vp.from_cases(cases)
        places = [*range(len(cases))]
        random.shuffle(places)
        found = {place: pipe.case(place)[0] for place in places}

    assert [found[place] for place in range(len(cases))] == names_of(cases)


def test_a_name_is_found_without_the_names_of_others(monkeypatch):
    """As long as few are needed; a name that others may have needs the names of all."""
    calls = []
    monkeypatch.setattr(case_names, "names_of", lambda cases: calls.append(cases) or ["-"] * 1000)
    found = vp.from_cases([{"image": f"{n // 10}/case{n}.nii", "label": 1} for n in range(1000)])

    assert found.case(1)[0] == "case1"
    assert found.case(999)[0] == "case999"
    assert not calls

    alike = vp.from_cases([{"image": f"{n // 2}/case{n % 2}.nii"} for n in range(1000)])
    assert alike.case(0)[0] == "-"
    assert len(calls) == 1


@pytest.mark.parametrize("value", ["p0/{}.nii", "s3://b/{}.nii", vp.Volume])
def test_names_follow_a_list_that_changes(value):
    """A pass of another list, of other cases in it or of another path names its own cases."""

    def case(name):
        image = vp.Volume(f"p0/{name}.nii") if value is vp.Volume else value.format(name)
        return {"image": image, "label": 1}

    cases = [case("a"), case("b")]
    pipe = vp.from_cases(cases)
    seen = [[sample.case for sample in pipe]]
    cases[1] = case("a")
    seen.append([sample.case for sample in pipe])
    cases[1]["image"] = case("c")["image"]
    seen.append([sample.case for sample in pipe])
    cases.append(case("d"))
    seen.append([sample.case for sample in pipe])

    assert seen == [["a", "b"], ["a#0", "a#1"], ["a", "c"], ["a", "c", "d"]]


def test_a_list_that_changes_before_its_first_pass_gives_its_own_names():
    """Names are looked for when the pipe is made; the list may change after that."""
    cases = [{"image": "p/a.nii"}, {"image": "p/b.nii"}]
    passed, listed = vp.from_cases(cases), vp.from_cases(cases)
    cases[0] = {"image": "q/b.nii"}
    cases.append({"image": "p/c.nii"})

    names = ["q", "p", "c"]
    assert [sample.case for sample in passed] == names
    assert [name for name, _ in listed.each_case()] == names
