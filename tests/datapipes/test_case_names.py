"""Cases that were given no name get one that tells them apart."""

import pytest

import voxpipe as vp


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
        (["p0/a.nii", "p1/a.nii", "p0/b.nii", "p1/b.nii"], ["p0", "p1", "b#2", "b#3"]),
    ],
)
def test_names_are_unique(paths, expected):
    """The file's name where it is the only one, else what differs in the folders, else a number."""
    assert names(*paths) == expected


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
