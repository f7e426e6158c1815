"""The chained forms of every pipe, written by tools/write_chained_forms.py."""

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
import os
from typing import Any, Literal, NoReturn, Self, TypeAlias
import numpy
from numpy.typing import ArrayLike, DTypeLike, NDArray
import torch
from torch.utils.data import DataChunk, IterDataPipe, MapDataPipe, default_collate
import torch.utils.data.datapipes.iter
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from ..core.grid import Grid
from ..core.sample import Sample
from .background_iterator import Prefetcher
from .batch_patches import BatchPatches, DeepSupervision, FillOutsidePipe, Realize
from .cache import Cache, Flush
from .channels import Stack, Unstack
from .open_volume import OpenVolume
from .patch_sampler import PatchSampler
from .points_and_boxes import MoveBoxes, MovePoints
from .replay import Replay
from .shuffle_plans import Interleave, ShufflePlans, ShuffleSpec
from .spatial import DataDependentPipe, SpatialPipe
from .stitch import Stitch
from .values import ChoicePipe, ValuePipe
from ..extensions.bridges.layouts import FromBids, FromDicom, FromNNUNet, from_bids, from_dicom, from_nnunet
from ..extensions.bridges.monai_pipes import MapMONAI, ToMetaTensor
from ..extensions.bridges.torchio_pipes import MapTorchIO, ToSubject
from ..extensions.microscopy.from_ome import FromOme, from_ome
from ..extensions.torchdata.archives import Bz2FileLoader, CompressionType, Decompressor, Extractor, TarArchiveLoader, XzFileLoader, ZipArchiveLoader
from ..extensions.torchdata.branches import Branch, RandomSplitter, RoundRobinDemultiplexer, UnZipper
from ..extensions.torchdata.combine import IterKeyZipper, MapKeyZipper, MultiplexerLongest, SampleMultiplexer, ZipperLongest
from ..extensions.torchdata.daemon_threads import BatchAsyncMapper, ThreadPoolMapper
from ..extensions.torchdata.fsspec_files import FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
from ..extensions.torchdata.functions import BatchMapper, BucketBatcher, FlatMapper, InBatchShuffler, MaxTokenBucketizer, Rows2Columnar, ShuffledFlatMapper
from ..extensions.torchdata.http_reader import HttpReader, OnlineReader
from ..extensions.torchdata.in_memory_cache import InMemoryCacheHolder
from ..extensions.torchdata.item_cache import ItemCache
from ..extensions.torchdata.items import Cycler, Dropper, Enumerator, Flattener, Header, IndexAdder, LengthSetter, MapToIterConverter, Repeater, Slicer
from ..extensions.torchdata.main_process import FullSync, PinMemory, ShardingRoundRobinDispatcher, ToDevice
from ..extensions.torchdata.map_pipe import IterToMapConverter
from ..extensions.torchdata.not_offered import AISFileLister, AISFileLoader, DataFrameMaker, GDriveReader, HuggingFaceHubReader, IoPathFileLister, IoPathFileOpener, IoPathSaver, ParquetDataFrameLoader, RarArchiveLoader, S3FileLister, S3FileLoader, TFRecordLoader
from ..extensions.torchdata.on_disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
from ..extensions.torchdata.streams import HashChecker, Saver
from ..extensions.torchdata.text import CSVDictParser, CSVParser, JsonParser, LineReader, ParagraphAggregator, ShardExpander, WebDataset
from ..graph import Pipe
from ..intensity.value_op import ValueOp
from ..spatial.plans.policy import Policy
from ..volumes.axis_map import AxisMap
from ..volumes.volume import Volume

Amount: TypeAlias = float | Sequence[float | Sequence[float]]
Antialias: TypeAlias = bool | Literal['level']
Axis: TypeAlias = int | str
CropSide: TypeAlias = Literal['end', 'start', 'center']
Extent: TypeAlias = Literal['edges', 'centers']
Mode: TypeAlias = Literal['linear', 'nearest', 'cubic']
Otherwise: TypeAlias = Literal['error', 'whole']
Padding: TypeAlias = Literal['border', 'reflection', 'constant', 'zeros']
ParameterRange: TypeAlias = float | Sequence[float]
Side: TypeAlias = Literal['end', 'start']
Sides: TypeAlias = Literal['both', 'end']
Size: TypeAlias = int | Sequence[int | None]
Space: TypeAlias = Literal['world', 'voxel']

class ChainedForms(IterDataPipe[Any]):
    """What can be chained on a pipe."""

    __getattr__: None  # type: ignore[assignment,misc]

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""

    def preview(self, count: int = 8, **options: Any) -> Any:
        """Return a figure of patches, before and after augmentation."""

    def add_index(self, index_name: str = 'index') -> IndexAdder:
        """Write the number of each item into it, under the key ``index_name``.

        Items are mappings, and do not change: the pipe yields a copy, and for a sample another sample.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([{"a": 1}, {"a": 2}]).add_index("order"))
        [{'a': 1, 'order': 0}, {'a': 2, 'order': 1}]
        """

    def affine(self, matrix: ArrayLike, shape: Sequence[int] | None = None, *, unit: str = 'mm', space: Space = 'world', p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Move content from ``centre + x`` to ``centre + A x + t``, with ``matrix = [A | t]``."""

    def anisotropy(self, factor: ParameterRange, axes: int | tuple[int, ...] = (0, 1, 2), *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Keep every ``factor``-th voxel along one axis, and interpolate linearly in between.

        The formula is that of ``LowResolution``, along the axis that was drawn.

        References
        ----------
        Billot et al., "Partial volume segmentation of brain MRI scans of any resolution and contrast",
        MICCAI 2020: thick slices, brought back to the spacing before.
        """

    def async_map_batches(self, async_fn: Callable[..., Awaitable[Any]], batch_size: int, input_col: int | str | Sequence[int | str] | None = None, output_col: int | str | None = None, max_concurrency: int = 32, flatten: bool = True, *, buffer_bytes: int | None = None) -> BatchAsyncMapper:
        """Apply a coroutine function to the items of a group concurrently; their order is kept.

        The event loop runs in a thread of its own, so this works in a notebook too, and lives as
        long as a pass. When one call fails, or the pass is left, the others of its group are cancelled.
        A call that blocks (``time.sleep``) cannot be; it is waited for as in ``threadpool_map``.

        - ``async_fn``: an ``async def`` function.
        - ``batch_size``: items in a group; the last may be smaller.
        - ``input_col``, ``output_col``: as of :class:`ThreadPoolMapper`.
        - ``max_concurrency``: calls that are under way at once.
        - ``flatten``: whether items are yielded, or lists of them.
        - ``buffer_bytes``: bytes that the results of a group may take, with the data of arrays and
          tensors. With ``flatten`` (None for 256 MiB) a group has as many items as results of the
          largest size seen so far fit, at least one. Else (None for 1 GiB) a list that takes more is a
          ``BufferError``.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> async def tenfold(number):
        ...     return 10 * number
        >>> list(IterableWrapper(range(4)).async_map_batches(tenfold, 3))
        [0, 10, 20, 30]
        """

    def augment(self, *, rotate: Amount = 0.0, zoom: Amount = 1.0, translate: Amount = 0.0, shear: Amount = 0.0, flip: float | Sequence[float] = 0.0, p: float = 1.0, space: Space = 'world', unit: str = 'mm', name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Rotate, zoom, translate, shear and flip, as the ops of these names do in this order.

        All of them compose to one matrix. A range is drawn from, ``rotate=(-15, 15)``. One number is a
        fixed amount: ``rotate=15`` always turns by 15 degrees about each axis.
        """

    def batch_patches(self, batch_size: int, *, drop_last: bool = False) -> BatchPatches:
        """Stack samples into ``{"image": (B, C, I, J, K), ..., "meta": [provenance, ...]}``.

        Parameters
        ----------
        batch_size
            Samples per batch.
        drop_last
            Whether to leave out a last, smaller batch.

        Notes
        -----
        The share of ``lazy_patch(oversample=)`` is one of each batch here: the last samples of a batch
        are drawn about foreground. A pipe in between that reads voxels, moves places or runs a function
        needs the place of a patch before its batch is known. Then each patch draws whether it is about
        foreground, with a warning.

        Lazy patches are realized straight into the batch's memory, without a tensor of their own;
        tensors are stacked. Numbers become one tensor, other things a list. Plain mappings are
        stacked too, but without ``meta``, with a ``ProvenanceLost`` warning if the chain began with
        cases. Without ``labels=`` of ``open_volume()`` the first batches are checked. An image whose
        stored voxels are few whole numbers causes a ``LikelyLabel`` warning.

        Raises
        ------
        PatchSizeError
            The batch size is no whole number of at least 1. The samples of a batch differ in shape
            or in their keys.
        SampleError
            Volumes of one key have the same named channels in another order.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> cases = [{"image": np.full((2, 2, 2), n, np.uint8)} for n in range(3)]
        >>> batch = next(iter(from_cases(cases).open_volume().batch_patches(2)))
        >>> batch["image"].shape, [m["case"] for m in batch["meta"]]
        (torch.Size([2, 1, 2, 2, 2]), ['0', '1'])
        """

    def bias_field(self, strength: ParameterRange = 0.5, order: int = 3, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Multiply by ``exp`` of a polynomial of the place in the volume.

        The field belongs to the volume: overlapping patches agree, and only turns move it later.

        ``value * exp(sum of c_abc x ** a y ** b z ** c)`` over ``a + b + c <= order``, with x, y and z
        from -1 at the volume's first voxel to 1 at the last one, along its axes.

        References
        ----------
        Van Leemput et al., "Automated model-based bias field correction of MR images of the brain",
        IEEE Transactions on Medical Imaging 18 (1999): a polynomial, added to logarithms.
        """

    def blur(self, sigma: ParameterRange, unit: str = 'mm', *, per_axis: bool = False, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """A Gaussian filter on the chain's result so far, which later spatial ops interpolate.

        Beyond the volume, the padding of the volume's sampling goes in.
        """

    def brightness(self, factor: ParameterRange = 1.0, add: ParameterRange = 0.0, *, two_sided: bool = False, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """``value * factor + add``, the same for all voxels."""

    def bucketbatch(self, batch_size: int, drop_last: bool = False, batch_num: int = 100, bucket_num: int = 1, sort_key: Callable[[list[Any]], list[Any]] | None = None, use_in_batch_shuffle: bool = True) -> ChainedForms:
        """Shuffle within pools, sort within buckets, and batch; the result is a chain of small pipes.

        - ``batch_num``: batches in a bucket, within which ``sort_key`` sorts a list of items.
        - ``bucket_num``: buckets in a pool, within which is shuffled.
        - ``use_in_batch_shuffle``: whether whole pools are shuffled, or a buffer of the size of a pool.
        - ``drop_last``: whether a last, smaller batch is left out.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> batches = IterableWrapper([3, 1, 2, 5, 4]).bucketbatch(2, sort_key=sorted)
        >>> list(batches)
        [[1, 2], [3, 4], [5]]
        """

    def cache(self, place: str | os.PathLike[str] | None = None, *, memory_bytes: int | None = None, keys: Collection[str] | None = None, chunk: int | None = None, codec: str = 'lz4', storage_options: Mapping[str, Any] | None = None) -> Cache:
        """Make the volumes of a chain once, keep them, and read patches from the kept volumes.

        Earlier pipes must have fixed parameters: ``spacing``, ``orientation``, ``foreground_crop``,
        ``normalize`` and the like. They cost one interpolation per volume. Later pipes stay lazy, and
        cost one interpolation per patch, which reads only the chunks that it touches. Voxels are those
        of ``flush()`` in its place, bit for bit. Files have the axes z, y, x, so after ``to_axes()`` a
        later interpolation from a folder may differ in the last bits.

        Parameters
        ----------
        place
            Folder or URL in which volumes are kept as sharded zarr. The first process that needs a
            volume, on any machine, writes it once. A write that was killed is continued. The name of a
            volume is a digest of the current file and of its steps, so another file or chain has other
            volumes. Remove old volumes yourself. None keeps them in memory.
        memory_bytes
            Without a place: bytes of kept voxels in memory, for all workers of a loader together. The
            least recently used parts are made again. By default a quarter of the memory. Workers then
            stay from epoch to epoch.
        keys
            Volumes to keep; by default all.
        chunk
            Voxels along each axis of the decode unit; by default for patches of 96.
        codec
            ``"lz4"`` (written fastest), ``"lz4hc"`` (decodes fastest), ``"zstd"`` (stores least) or
            ``"none"``.
        storage_options
            For fsspec, where the place is a URL. They never appear in messages.

        Raises
        ------
        GraphError
            Something before it is drawn, or cuts patches; this is at construction.
        SampleError
            At the first item: there is no lazy volume.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> cases = [{"image": np.zeros((8, 8, 8), np.int16)}]
        >>> pipe = from_cases(cases).open_volume().spacing(2.0).cache(memory_bytes=10**9).lazy_patch(2)
        >>> print(next(iter(pipe))["image"].realize().shape)
        (1, 2, 2, 2)
        """

    def cache_items(self, store: str | os.PathLike[str] | None = None, *, version: str | int = '', key_fn: Callable[[Any], Any] | None = None, ttl: float = ..., store_bytes: int | None = None, timeout: float = 2.0, on_error: str = 'warn', storage_options: Mapping[str, Any] | None = None) -> ItemCache:
        """Keep the results of the pipes before it in a store that processes and machines share.

        Kept are the pipes directly before it that take single items, from the first that reads or runs
        a function. They run for one item at a time. Results hold numbers, texts, bytes, lists, tuples,
        dictionaries, samples, arrays and tensors (in C order); nothing is pickled.

        The key of a result has the item before the kept pipes, their code and arguments, and
        ``version``. Volumes count by content, plan and identity of their sample, paths and URLs by
        their text. Functions must not depend on a sample's seed or epoch.

        - ``store``: The URL of a Redis server (``pip install voxpipe[redis]``), a folder, or a URL of
          fsspec. By default a folder in the cache directory.
        - ``version``: Text or number, needed for a function whose code does not show its results, as if
          it reads a file. Change it with the function.
        - ``key_fn``: Makes plain values of an item, which count in its place.
        - ``ttl``: Seconds after which a result is made again.
        - ``store_bytes``: Bytes of all results, beyond which the oldest are removed. By default
          ``$VOXPIPE_CACHE_BYTES``. Outside Redis, a process may exceed it by a sixteenth.
        - ``timeout``: Seconds for one answer of Redis or of an asynchronous file system.
        - ``on_error``: With ``"warn"``, items are made again if a store fails or an entry is damaged.
          One ``CacheUnused`` warns, and the store is used again after 30 s. ``"raise"`` raises.
        - ``storage_options``: Options of the client, never written anywhere.

        Raises
        ------
        GraphError
            At construction: there is no pipe to keep, one draws, or ``version`` is missing.
        SampleError
            A result, or an item without ``key_fn``, has no safe form.
        StoreUnavailable, StreamError
            With ``on_error="raise"``: the store failed, or an entry is damaged.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> def double(number):
        ...     print("making", number)
        ...     return 2 * number
        >>> pipe = IterableWrapper([1, 2]).map(double).cache_items("kept")
        >>> list(pipe), list(pipe)
        making 1
        making 2
        ([2, 4], [2, 4])
        """

    def center_crop(self, size: int | Sequence[int | None] | None = None, side: CropSide = 'end', *, scale: float | Sequence[float] | None = None, hard: bool = False, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Keep a box about the centre; ``side`` decides where an odd voxel is cut off."""

    def check_hash(self, hash_dict: Mapping[str, str], hash_type: str = 'sha256', rewind: bool = True) -> HashChecker:
        """Pass ``(name, data)`` on if the data have the hash that the name must have.

        Data are bytes, text, or an open file. ``hash_dict`` holds hashes in hexadecimal digits by name,
        and ``hash_type`` is ``"sha256"`` or ``"md5"``. Another hash, or none for this name, raises
        ``HashMismatch``. ``rewind`` puts an open file back to its beginning. A file that cannot go back
        (a download) is a ``SampleError`` then; with ``rewind=False`` it is read to its end here.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> source = IterableWrapper([("a.txt", b"hello")])
        >>> list(source.check_hash({"a.txt": "5d41402abc4b2a76b9719d911017c592"}, "md5"))
        [('a.txt', b'hello')]
        """

    def clamp(self, low: float | None = None, high: float | None = None, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Values below ``low`` become ``low``, those above ``high`` become ``high``.

        It commutes with interpolation nearly: where values beyond the range are next to others, the
        edge between them moves by a fraction of a voxel.
        """

    def contrast(self, factor: ParameterRange, middle: float | None = None, keep_range: bool = False, *, two_sided: bool = False, statistics_over: str = 'volume', p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """``(value - middle) * factor + middle``.

        The mean of a CT is near that of air, far below the mean of a patch inside the body. With
        ``statistics_over="patch"``, as in nnU-Net, mean and range are those of each channel of the
        op's input, with the halo of later filters. Overlapping patches then differ.
        """

    def crop(self, start: Sequence[int] | None = None, size: int | Sequence[int | None] | None = None, *, end: Sequence[int] | None = None, center: Sequence[int] | None = None, slices: Sequence[slice] | None = None, hard: bool = False, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Keep the voxels ``start <= index < end`` of the present grid.

        Give one of: start and size, start and end, center and size, slices.
        """

    def crop_or_pad(self, size: int | Sequence[int | None] | None, side: CropSide = 'end', *, hard: bool = False, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Cut or add voxels on each axis to reach ``size``; ``side`` decides about odd ones."""

    def cycle(self, count: int | None = None) -> Cycler:
        """Yield all items of the parent ``count`` times; None for ever.

        A loader's seed covers every turn: random pipes above are seeded anew for each, so that
        turns differ and an epoch can be repeated and resumed. A parent without any item ends.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(3)).cycle(2))
        [0, 1, 2, 0, 1, 2]
        """

    def dataframe(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def decompress(self, file_type: str | CompressionType | None = None, *, most_bytes: int = 17179869184) -> Decompressor:
        """Yield ``(path, decoded stream)`` for each ``(path, compressed stream)``.

        gzip, xz and bzip2 become a stream of bytes. For tar and zip the stream wraps an open
        ``TarFile`` or ``ZipFile``, which ``load_from_tar`` and ``load_from_zip`` take; its own
        ``extractall()`` writes nothing outside of the folder that it is given.

        ``file_type`` is ``"gzip"``, ``"lzma"``, ``"tar"``, ``"zip"``, ``"bz2"`` or a
        ``CompressionType``; by default it follows from the suffix of the path. ``most_bytes`` limits a
        decoded stream (16 GiB). An unknown suffix, damaged or too many bytes raise ``StreamError``.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> file = io.BytesIO(gzip.compress(b"hello"))
        >>> pipe = IterableWrapper([("a.txt.gz", file)], deepcopy=False).decompress()
        >>> [(path, stream.read()) for path, stream in pipe]
        [('a.txt.gz', b'hello')]
        """

    def deep_supervision(self, scales: Sequence[float | Sequence[float]], keys: str | Sequence[str] = 'label') -> DeepSupervision:
        """Put a list of labels at several scales in the place of the labels of a batch.

        For networks with outputs at several resolutions: nnU-Net's deep supervision. Nothing is read
        again: each scale takes the voxels in the middles of its larger ones. Put it after
        ``batch_patches``, and after pipes that change labels.

        Parameters
        ----------
        scales
            For each output of the network, the finest first, the part that its grid has of the
            patch's: a number from above 0 to 1, or one for each axis. ``(1, 0.5, 0.25)``
        keys
            The labels, each of which becomes a list of tensors.

        Raises
        ------
        SampleError
            It comes before ``batch_patches()``, or there is no such key.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"label": np.zeros((8, 8, 4), np.uint8)}]).open_volume().batch_patches(1)
        >>> batch = next(iter(pipe.deep_supervision((1, (0.5, 0.5, 1)))))
        >>> [tuple(one.shape) for one in batch["label"]]
        [(1, 1, 8, 8, 4), (1, 1, 4, 4, 4)]
        """

    def divisible_pad(self, k: Size, side: Side = 'end', *, sides: Sides = 'both', name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Add voxels until each axis has a multiple of ``k``."""

    def drop(self, indices: Hashable | list[Hashable]) -> Dropper:
        """Leave out columns of tuples and lists, or keys of mappings.

        ``indices`` is one index or key, or a list of them; negative indices count from the end.
        Missing columns, and items without columns, cause one warning.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([(0, 10), (1, 11)]).drop(1))
        [(0,), (1,)]
        """

    def drop_boxes(self, size: ParameterRange, fraction: ParameterRange, fill: float = 0.0, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Fill boxes with one value, strewn evenly over the lattice of the result.

        Space is cut into cubes as large as the largest box; each holds the start of at most one box. So
        overlapping patches agree. Boxes follow the axes of the result.

        With edges from ``low`` to ``high``, cubes are ``high`` voxels wide, and the chance of a box in
        each is ``fraction / ((low + high) / (2 high)) ** 3``. It begins at any voxel of its cube, and
        each of its edges is any whole number from ``low`` to ``high``, all equally likely.

        References
        ----------
        DeVries and Taylor, "Improved regularization of convolutional neural networks with cutout",
        arXiv:1708.04552 (2017): one box there, as many as make up a fraction here.
        """

    def drop_channels(self, p_channel: float, fill: float = 0.0, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Fill whole channels with one value; at least one stays."""

    def drop_component(self, max_fraction: float = 0.15, *, p_channel: float = 1.0, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Take one connected part out of each channel's mask, of those that are not too large.

        Voxels that touch, by a corner too, are connected.
        """

    def elastic(self, amount: Amount, spacing: float | Sequence[float] = 32.0, locked_layers: int = 0, *, unit: str = 'mm', space: Space = 'world', p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Move control points at random and all voxels smoothly with them.

        A coarse lattice of control points covers the present grid, with a uniform cubic B-spline
        between them. Each point moves by up to ``amount`` along each axis, evenly distributed, so no
        voxel moves further. Nothing folds with ``amount`` below 0.403 of the spacing.
        """

    def end_caching(self, mode: str = 'wb', filepath_fn: Callable[[Any], Any] | None = None, *, same_filepath_fn: bool = False, skip_read: bool = False, timeout: float = 300.0) -> EndOnDiskCacheHolder:
        """End the part of ``on_disk_cache()``: write ``(name, data)`` to files, and yield their paths.

        Paths come in the order of the items, whether the files were there or not. Other processes may
        run the same chain: each file is made by one of them.

        - ``mode``, ``filepath_fn``: as of ``save_to_disk()``, which takes the same data.
        - ``same_filepath_fn``: whether to use the function of ``on_disk_cache()``.
        - ``skip_read``: no effect: open files are read, bytes and text are written.
        - ``timeout``: seconds to wait for another process that makes the files of one item; the adapter
          ``CacheTimeout`` sets it for a whole graph.

        Raises
        ------
        UnendedCache
            At construction: there is no ``on_disk_cache()`` upstream, or it was ended already.
        CacheBusy
            Another process took longer than ``timeout``; the message names it.
        HashMismatch
            A file that was made is not the one that ``hash_dict`` expects; it is not kept.

        Examples
        --------
        As of ``on_disk_cache``; a download is kept by
        ``urls.on_disk_cache(path_of).read_from_http().end_caching(same_filepath_fn=True)``.
        """

    def enumerate(self, starting_index: int = 0) -> Enumerator:
        """Yield ``(index, item)``, with indices from ``starting_index`` on.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").enumerate())
        [(0, 'a'), (1, 'b')]
        """

    def extract(self, file_type: str | CompressionType | None = None, *, most_bytes: int = 17179869184) -> Extractor:
        """The older name of :class:`Decompressor`."""

    def fill_outside(self, keys: str | Sequence[str], *, mask: str, outside: int = 0, fill: float = 0.0, channels: Sequence[int] | None = None, keep_mask: bool = True) -> FillOutsidePipe:
        """Fill volumes of a batch outside of its mask.

        For volumes normalized inside of a mask, which must be 0 outside after any op: nnU-Net's
        ``use_mask_for_norm``. Put it after ``batch_patches``.

        Parameters
        ----------
        keys
            The volumes that are filled.
        mask
            Key of the mask. A voxel is outside where all of its channels are ``outside``.
        outside
            The value of the mask outside.
        fill
            The new value of voxels outside.
        channels
            Which channels are filled; by default all.
        keep_mask
            Whether the batch keeps the mask.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> case = {"image": np.ones((1, 1, 3), np.float32), "label": np.array([[[-1, 0, 2]]], np.int8)}
        >>> pipe = from_cases([case]).open_volume().batch_patches(1)
        >>> next(iter(pipe.fill_outside("image", mask="label", outside=-1)))["image"].flatten().tolist()
        [0.0, 1.0, 1.0]
        """

    def flatmap(self, fn: Callable[..., Iterable[Any]] | None = None, input_col: int | str | Sequence[int | str] | None = None) -> FlatMapper:
        """Apply a function to each item, and yield the items that it returns.

        Without ``fn`` the items of the parent are unpacked. ``input_col`` is the index or key of the
        argument of ``fn``, or a list of them for several; None for the item.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([[1, 2], [3]]).flatmap())
        [1, 2, 3]
        """

    def flatten(self, indices: Hashable | list[Hashable] | None = None) -> Flattener:
        """Unpack tuples and lists in tuples and lists, or mappings in mappings, by one level.

        ``indices`` is the index or key to unpack, or a list of them; all by default. An existing key
        keeps its value, with one warning; missing columns cause one warning, too.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([(0, (1, 2)), (3, (4, 5))]).flatten())
        [(0, 1, 2), (3, 4, 5)]
        >>> list(IterableWrapper([((0, 1), (2, 3))]).flatten(0))
        [(0, 1, (2, 3))]
        """

    def flip(self, axes: Axis | Sequence[Axis] = (0, 1, 2), *, p: float | Sequence[float] = 1.0, exactly_one: bool = False, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Reverse the order of the voxels along ``axes``, each on its own with its probability."""

    def flush(self, keys: Collection[str] | None = None) -> Flush:
        """End the fused plan here: later spatial pipes interpolate the result of this one.

        Nothing is read yet; later pipes read only the voxels that they need. Each flush costs one more
        interpolation and its blur. Use it to compare with eager libraries (one flush after every
        spatial pipe), or to sample two pipes differently. Earlier values of ``mode=``, ``padding=`` and
        ``fill=`` stay valid until a pipe after the flush sets others.

        Parameters
        ----------
        keys
            Volumes to flush; by default all.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> volume = np.zeros((8, 8, 8), np.int16)
        >>> pipe = from_cases([{"image": volume}]).open_volume().rotate(15).flush().rotate(-15)
        >>> print(next(iter(pipe))["image"].shape)
        (1, 8, 8, 8)
        """

    def foreground_crop(self, key: str = 'image', above: float | str | None = None, classes: int | Collection[int] | None = None, margin: int | Sequence[int] = 0, level: int = 0, *, divisible: int | Sequence[int] = 1, overhang: bool = False, fallback: Otherwise = 'error', hard: bool = False, select_fn: Callable[[Any], Any] | None = None, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> DataDependentPipe:
        """Keep the smallest box of the present grid with all voxels of interest, and a margin.

        The voxels of interest come from one stored volume, found once. Ops before the crop move the box
        and are not carried out for it. If they turn, it is the box around the turned one.
        """

    def fullsync(self, timeout: float = 1800.0) -> FullSync:
        """Yield items as long as every rank of ``torch.distributed`` has one.

        Without it a rank whose share is longer waits for ever for the others in its next collective.

        Before each item the ranks agree over gloo whether all have one. A thread makes one item ahead
        in each rank. One rank alone sends no message. This pipe is not replicable: a loader runs it
        in its own process, after its workers.

        Parameters
        ----------
        datapipe
            The parent: this rank's share.
        timeout
            Seconds that any rank may take for an item.

        Raises
        ------
        PrefetchTimeoutError
            While iterating, on every rank: one took too long for an item; the message names it.
        RankFailed
            While iterating: another rank failed; the message names it and its error.
        RankMissing
            While iterating: another rank left its loop, is gone, or does not answer.
        """

    def gamma(self, gamma: ParameterRange, in_range: tuple[float, float] | None = None, *, two_sided: bool = False, statistics_over: str = 'volume', keep_statistics: bool = False, invert: bool = False, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """``low + (high - low) * ((value - low) / (high - low)) ** gamma``; the ends stay.

        Values beyond the ends are mirrored at the lower one, so that no root of a negative number is
        taken. Commutes with interpolation nearly, as far as the curve is straight from voxel to voxel.

        MONAI's ``AdjustContrast`` is ``statistics_over="patch"`` on a patch: the ends are those of each
        channel, as in nnU-Net. Overlapping patches then differ.
        """

    def grid_distortion(self, limit: float | tuple[float, float] = (-0.03, 0.03), cells: int | Sequence[int] = 5, factors: Sequence[Sequence[float]] | None = None, *, p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Stretch or squeeze each cell of a coarse grid along each axis, by a factor of its own.

        An axis of n voxels has ``cells`` cells of ``n / cells`` voxels. A cell shows the content of its
        factor times as many voxels, from the end of the cell before. So a factor above 1 squeezes
        content. The first face of the grid stays in place. The map along an axis is piecewise linear,
        in one displacement of the plan. Its spline rounds the corners within a quarter of a cell, by at
        most 1/24 of a cell times the difference of the factors.
        """

    def header(self, limit: int | None = 10) -> Header:
        """Yield the first ``limit`` items of the parent; None for all. No further item is read.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(10)).header(3))
        [0, 1, 2]
        """

    def in_batch_shuffle(self) -> InBatchShuffler:
        """Yield each batch, a list, with its items in a drawn order.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> [sorted(batch) for batch in IterableWrapper(range(5)).batch(3).in_batch_shuffle()]
        [[0, 1, 2], [3, 4]]
        """

    def in_memory_cache(self, size: float | None = None) -> InMemoryCacheHolder:
        """Keep the last items of the first pass in memory, and yield them from there in later ones.

        Every pass yields the same objects: do not change them in place. Only samples are new objects
        with the number of the epoch, so that later pipes draw anew. Kept items are not sent to
        workers: each worker keeps its own, and then stays for the next epoch. An unfinished pass
        keeps nothing. The parent has to yield the same items in every pass: put random pipes
        (``shuffle``, ``lazy_patch``, ``augment``) after the cache. Samples with draws are refused by a
        ``GraphError``: they differ in every epoch.

        ``size`` is the number of megabytes that items may take, with the data of their arrays and
        tensors; None for no limit. If they take more, the first items are made anew in each pass, so
        that the parent is not read beyond them.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> kept = IterableWrapper(range(3)).in_memory_cache(size=5)
        >>> list(kept), list(kept)
        ([0, 1, 2], [0, 1, 2])
        """

    def interleave(self, visits: int, patches_per_turn: int = 1) -> Interleave:
        """Let the patches of several visits to volumes take turns, some of each at a time.

        Put it after ``lazy_patch(samples_per_volume=...)``, with ``patches_per_turn`` the size of a
        batch: every batch then holds patches of one visit, neighbouring batches those of different
        visits. A worker gets the batches of the same visits as long as no other worker has to wait. So
        a chunk is decoded in one process. Batches and their order depend on the chain alone, not on the
        number of workers. Nothing is read: only descriptions are buffered.

        Parameters
        ----------
        visits
            Visits that are under way at once: the number of workers, or a multiple of it.
        patches_per_turn
            Patches of one visit before it is the next one's turn.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> cases = [{"case": name, "image": np.zeros((8, 8, 8))} for name in "abc"]
        >>> pipe = from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=4)
        >>> [patch.case for patch in pipe.interleave(visits=2, patches_per_turn=2)]
        ['a', 'a', 'b', 'b', 'a', 'a', 'b', 'b', 'c', 'c', 'c', 'c']
        """

    def label_crop(self, size: int | Sequence[int | None] | None, key: str = 'label', classes: int | Collection[int] | None = None, level: int = 0, *, fallback: Otherwise = 'error', hard: bool = False, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> DataDependentPipe:
        """Keep a box of ``size`` about the middle of the box of labels.

        The box may reach over the grid; the padding rule fills missing voxels. For patches about a
        random voxel of a class see ``lazy_patch(mask=, class_weights=)``.
        """

    def lazy_patch(self, size: Size, *, samples_per_volume: int | str | Callable[[Sample], int] = 1, sampling: str = 'uniform', overlap: Size = 0, region: Size | None = None, align: Size | None = None, mask: str | Volume | None = None, min_fraction: float = 0.0, class_weights: Mapping[Any, float] | None = None, oversample: float | None = None, select_fn: Callable[[NDArray[Any]], Any] | None = None, level: int = 0, weights: str | Volume | None = None, fallback: str = 'error', allow_smaller: bool = False, name: str = '') -> PatchSampler:
        """Yield patches of each volume: descriptions of where to cut, no voxels.

        Parameters
        ----------
        size
            Patch size (I, J, K) in voxels of the current grid; one number for all axes, of 2-D data in
            their plane. None keeps an axis: ``(32, 32, None)``. Two numbers are for 2-D data, (Y, X).
            Tensors then have two spatial axes, and ``overlap`` and ``region`` two numbers as well.
        samples_per_volume
            Patches drawn from each volume, with ``sampling="uniform"``. The number is fixed, or that of
            each case: the key of the number in the sample, or a function of the sample.
        sampling
            ``"uniform"``: each place where the patch fits is equally likely. ``"grid"``: as
            many patches as cover the volume, in order; the last ones are moved inward.
        overlap
            With ``"grid"``: voxels shared by neighbours: one number, for all axes along which a patch
            has more than one voxel; or three.
        region
            With ``"uniform"``: all patches of one visit to a volume are in one region of this size,
            which is drawn for the visit. Each place is as likely as without. Patches of one visit are
            closer to each other: chunks are decoded once for several of them. The loader's
            ``explain()`` recommends a size. One number or three, at least ``size + align - 1``.
        mask
            With ``"uniform"``: patches are drawn inside of it. With ``"grid"``: patches without it are
            left out, and with ``min_fraction`` those that hold less. Key of a label or boolean volume
            of the sample, or a ``Volume`` for all cases; any voxel that is not 0 is inside. An image,
            with its many values, is refused unless ``class_weights`` names labels. It may be coarser
            than the volumes and have a grid of its own. Then leave its key out of
            ``open_volume(keys=...)``, and give a path or ``Volume(array, affine=...)``.
        min_fraction
            With ``mask``: part of the patch that is inside, at least; of a grid exactly, else to within
            the cells (8 voxels, or a quarter of the patch) that faces of the patch cut.
        class_weights
            With ``mask``: how often a voxel of each label is in the middle, voxel ``n // 2`` of n,
            ``{0: 1, 2: 3}``; near a face the patch is moved inward. Labels that a volume lacks leave
            their part to the others; ``min_fraction`` is of the drawn one.
            ``"other"`` is for all other labels together. In a mask of several channels, one-hot or
            probabilities, each channel is a class, and its values say how likely each voxel is.
        oversample
            With ``mask``: the share of each batch that is drawn about foreground, as nnU-Net's
            ``oversample_foreground_percent``; the rest is anywhere. The foreground's class is drawn
            uniformly among the labels that the case has, 0 apart, or by ``class_weights``. The last
            patches of a batch are those, as many as ``n - round(n * (1 - oversample))`` of n. Patches
            that come in no batch of ``batch_patches()`` draw each whether they are one. A case without
            foreground gives patches anywhere.
        select_fn
            A function from the voxels (C, I, J, K) of ``mask`` to a mask of their shape.
            Slope and intercept are applied. It gets the whole volume, once for each content of a file
            and each code of the function: ``mask="image", select_fn=is_tissue``.
        level
            With ``select_fn``: the level of a pyramid that the function gets.
        weights
            With ``"uniform"``, and instead of ``mask``: how likely each voxel is to be the middle of a
            patch, voxel ``n // 2`` of n, wherever the patch fits. Key of a volume of the sample, or a
            ``Volume`` for all cases, on any grid. It has one channel of finite numbers from 0; their
            sum is free. Voxels too near a face have no part, unless no others weigh anything: then the
            patch is moved inward. On an axis with one place for the patch, every voxel counts.
        allow_smaller
            Whether a volume shorter than the patch gives a shorter patch, as in MONAI. By default the
            padding rule fills it to ``size``.
        fallback
            With ``mask`` or ``weights``, where they have no such place: ``"error"``, or a patch
            ``"anywhere"``.
        align
            Regions begin at multiples of this: give the chunk of the stored volumes. By default the
            largest divisor of ``region`` for which it is large enough.

        Notes
        -----
        A crop is *soft*: a later rotation reads its corners from the volume around the patch. A patch
        that is larger than the volume is centred on it, the padding rule fills the rest, and one
        warning reports it.

        A mask or map of weights is read once per volume, by the process that first plans with it. It is
        kept as runs of voxels of equal weight, for files also on disk; :meth:`prepare` does it for all
        cases now. Runs take a byte for 500 voxels of a mask, 1 MiB of a map of weights. If not all runs
        fit, the kept ones are spread evenly over all places. A drawn voxel always has its class, and
        its place is one of some ten thousand.

        Raises
        ------
        PatchSizeError
            At construction, for a size or overlap that cannot be. Later, where a mask has no place
            for a patch or weights are no weights; the message says so with the case.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume()
        >>> [s["image"].shape for s in pipe.lazy_patch(4, samples_per_volume=2)]
        [(1, 4, 4, 4), (1, 4, 4, 4)]

        Patches around label 2 and the background, half of them each:

        >>> label = np.zeros((8, 8, 8), np.uint8)
        >>> label[6, 6, 6] = 2
        >>> pipe = from_cases([{"label": label}]).open_volume()
        >>> pipe = pipe.lazy_patch(4, samples_per_volume=20, mask="label", class_weights={0: 1, 2: 1})
        >>> {s["label"].draws["lazy_patch"]["class"] for s in pipe} == {0, 2}
        True

        Patches about voxels that a map makes likely:

        >>> likely = np.zeros((8, 8, 8), np.float32)
        >>> likely[3, 4, 5], likely[5, 4, 5] = 0.9, 0.1
        >>> pipe = from_cases([{"image": likely, "likely": likely}]).open_volume()
        >>> pipe = pipe.lazy_patch(4, samples_per_volume=20, weights="likely")
        >>> {tuple(s["image"].draws["lazy_patch"]["start"]) for s in pipe} == {(1, 2, 3), (3, 2, 3)}
        True
        """

    def lines_to_paragraphs(self, joiner: Callable[[list[Any]], Any] = ...) -> ParagraphAggregator:
        """Yield ``(path, paragraph)``: lines of one file up to an empty one, joined.

        The parent yields ``(path, line)``. Paragraphs are made by ``joiner`` of a list of lines; by
        default ends of lines come in between.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> lines = [("a", "one"), ("a", "two"), ("a", ""), ("a", "three"), ("b", "four")]
        >>> list(IterableWrapper(lines).lines_to_paragraphs(" ".join))
        [('a', 'one two'), ('a', 'three'), ('b', 'four')]
        """

    def list_files_by_ais(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def list_files_by_fsspec(self, masks: str | list[str] = '', **options: Any) -> FSSpecFileLister:
        """Yield the path or URL of everything directly in a folder, sorted.

        - ``root``: path or URL of a folder (or of one file, which is yielded itself), several of them,
          or a pipe that yields them.
        - ``masks``: pattern, or patterns, one of which the name must match, with its folder or without
          it: ``"*.nii.gz"``.
        - ``storage_options``, or plain keywords: of the file system. They are never written anywhere.

        Raises
        ------
        VolumeNotFound
            There is nothing at the URL.
        StoreUnavailable
            The store kept failing; see ``$VOXPIPE_REMOTE_DEADLINE``.
        VolumeReadError
            Any other failure of the store.

        Examples
        --------
        >>> import fsspec
        >>> memory = fsspec.filesystem("memory")
        >>> memory.pipe({"/scans/b.nii": b"", "/scans/a.nii": b"", "/scans/notes.txt": b""})
        >>> list(FSSpecFileLister("memory://scans", "*.nii"))
        ['memory:///scans/a.nii', 'memory:///scans/b.nii']
        """

    def list_files_by_iopath(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def list_files_by_s3(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_files_by_ais(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_files_by_s3(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_from_bz2(self, length: int = -1, *, most_bytes: int = 17179869184) -> Bz2FileLoader:
        """Yield ``(path without .bz2, stream)`` for each ``(path, bzip2 stream)``.

        Arguments and errors are those of :class:`XzFileLoader`.
        """

    def load_from_rar(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_from_tar(self, mode: str = 'r:*', length: int = -1, *, most_bytes: int | None = None) -> TarArchiveLoader:
        """Yield ``(path of the member, stream)`` for each file in each tar archive.

        The parent yields ``(path, binary stream)``. The archive is read as the members are, gzip,
        bzip2 or xz included: nothing is unpacked ahead. From a stream that cannot seek, read each
        member before the next one. Links, folders and devices are left out.

        ``mode`` is as of ``tarfile.open``, and ``length`` the result of ``len()``. ``most_bytes``
        limits the decoded bytes of one member; by default to 16 GiB in compressed archives.

        Raises
        ------
        StreamError
            The archive is damaged, cut off in the middle of a header included, a member leads out
            of it (``../x``, ``/x``), or holds more than it may.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> file = io.BytesIO()
        >>> with tarfile.open(fileobj=file, mode="w") as tar:
        ...     info = tarfile.TarInfo("p0/note.txt")
        ...     info.size = 5
        ...     tar.addfile(info, io.BytesIO(b"hello"))
        >>> _ = file.seek(0)
        >>> pipe = IterableWrapper([("a.tar", file)], deepcopy=False).load_from_tar()
        >>> [(path, stream.read()) for path, stream in pipe]
        [('a.tar/p0/note.txt', b'hello')]
        """

    def load_from_tfrecord(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_from_xz(self, length: int = -1, *, most_bytes: int = 17179869184) -> XzFileLoader:
        """Yield ``(path without .xz, stream)`` for each ``(path, xz or lzma stream)``.

        Bytes are decoded as they are read. ``length`` is the result of ``len()`` if the parent has
        none. ``most_bytes`` limits the decoded bytes of one file (16 GiB). Damaged, truncated or too
        many bytes raise ``StreamError``.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> file = io.BytesIO(lzma.compress(b"hello"))
        >>> pipe = IterableWrapper([("axx.xz", file)], deepcopy=False).load_from_xz()
        >>> [(path, stream.read()) for path, stream in pipe]
        [('axx', b'hello')]
        """

    def load_from_zip(self, length: int = -1, *, most_bytes: int | None = None) -> ZipArchiveLoader:
        """Yield ``(path of the member, stream)`` for each file in each zip archive.

        Members are decoded as they are read. An archive that arrives as a stream that cannot go back
        is first written to a temporary file without a name. Arguments and errors are those of
        :class:`TarArchiveLoader`; an encrypted archive is a ``StreamError``, too.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> file = io.BytesIO()
        >>> with zipfile.ZipFile(file, "w") as archive:
        ...     archive.writestr("p0/note.txt", "hello")
        >>> pipe = IterableWrapper([("a.zip", file)], deepcopy=False).load_from_zip()
        >>> [(path, stream.read()) for path, stream in pipe]
        [('a.zip/p0/note.txt', b'hello')]
        """

    def load_parquet_as_df(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def low_resolution(self, factor: ParameterRange, *, axes: int | tuple[int, ...] = (0, 1, 2), by_inverse: bool = False, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Keep every ``factor``-th voxel along all axes, and interpolate linearly in between.

        Along each axis in turn, with ``m = floor(x / factor)`` and ``t = x / factor - m``, a voxel
        becomes ``(1 - t) v(k_m) + t v(k_m+1)``, where ``k_m = round(m factor)`` is a voxel that stays.

        References
        ----------
        Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image
        segmentation", Nature Methods 18 (2021): one of its augmentations, nearest down, and up again.
        """

    def map_batches(self, fn: Callable[[list[Any]], Iterable[Any]], batch_size: int, input_col: int | str | Sequence[int | str] | None = None) -> BatchMapper:
        """Gather items, apply a function to each group, and yield the items that it returns.

        ``fn`` receives a list of ``batch_size`` items; the last may be shorter. ``input_col`` is the
        index or key of the part of each item for ``fn``, or a list of them; None for the item.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(5)).map_batches(sorted, batch_size=3))
        [0, 1, 2, 3, 4]
        """

    def map_monai(self, transform: Callable[[Any], Any], *, lazy: bool = True, name: str = '') -> MapMONAI:
        """Run a dictionary transform of MONAI on each sample, as pipes where it has an equal here.

        The first transforms of a ``Compose`` that have an equal become ordinary pipes, which
        ``print(pipe)`` shows: they read nothing, and add no interpolation. From the first one that has
        none, MONAI runs the rest on the voxels of each sample, as ``MetaTensor`` with the affine of the
        patch. Which have an equal: docs/bridges.md.

        Generators of transforms are seeded for each sample from its stream, so that batches are the
        same under any number of workers. After ``lazy_patch()`` an equal that moves voxels reads the
        corners of a patch from the volume around it, where MONAI has padding.

        Parameters
        ----------
        transform
            A dictionary transform, or a ``Compose`` of several; ``OneOf`` and its like run in MONAI.
        lazy
            Whether those that have an equal become pipes; False has MONAI run all.
        name
            Of the stream that the seeds come from; by default ``map_monai``.

        Raises
        ------
        SampleError
            At construction: a transform makes several samples of one, reads files, or is one for
            arrays. Later: it returned no mapping, or moves some volumes of the sample only.

        Examples
        --------
        >>> import numpy as np
        >>> from monai.transforms import Compose, Flipd, ThresholdIntensityd
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.arange(8.0).reshape(2, 2, 2)}]).open_volume()
        >>> pipe = pipe.map_monai(Compose([Flipd("image", 0), ThresholdIntensityd("image", 2)]))
        >>> print(pipe)
        import voxpipe as vp
        <BLANKLINE>
        pipe = (
            vp.from_cases([{'image': ...}])  # from_cases(1 cases)
            .open_volume()
            .flip(axes=(0,))
            .map_monai(...)  # map_monai(Compose(ThresholdIntensityd))
        )
        >>> next(iter(pipe))["image"].flatten().tolist()
        [4.0, 5.0, 6.0, 7.0, 0.0, 0.0, 0.0, 3.0]
        """

    def map_torchio(self, transform: Callable[[Any], Any], *, name: str = '') -> MapTorchIO:
        """Run a transform of TorchIO on the voxels of each sample.

        The sample becomes a ``Subject``: labels are ``LabelMap``, other volumes ``ScalarImage``, each
        with the affine of the patch. Results of the transform keep their keys. TorchIO draws from
        torch's generator, which is seeded for each sample and restored. So batches are the same under
        any number of workers.

        Parameters
        ----------
        transform
            Any transform of TorchIO, also a ``Compose`` or ``OneOf``.
        name
            Of the stream that the seeds come from; by default ``map_torchio``.

        Raises
        ------
        SampleError
            The transform is not TorchIO's, the pipe comes before ``open_volume()`` or after
            ``batch_patches()``, or the sample has no volume.

        Examples
        --------
        >>> import numpy as np, torchio
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.arange(8.0).reshape(2, 2, 2)}]).open_volume()
        >>> sample = next(iter(pipe.map_torchio(torchio.Clamp(2, 5))))
        >>> sample["image"].flatten().tolist()
        [2.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]
        """

    def map_values(self, function: Callable[[NDArray[numpy.float32]], NDArray[Any]], commutes: bool = False, *, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Apply a function to every patch: float32 (C, I, J, K) in, the same shape out."""

    def max_token_bucketize(self, max_token_count: int, len_fn: Callable[[Any], int] = ..., min_len: int = 0, max_len: int | None = None, buffer_size: int = 1000, include_padding: bool = False) -> MaxTokenBucketizer:
        """Gather items of similar length into batches whose lengths add up to a limit at most.

        - ``max_token_count``: the limit.
        - ``len_fn``: returns the length of an item: voxels, tokens, samples.
        - ``min_len``, ``max_len``: shorter and longer items are left out; by default those above the
          limit.
        - ``buffer_size``: items among which the shortest is taken next. Shuffle before and after, and
          keep this small, if batches of one length are not to follow each other.
        - ``include_padding``: whether every item counts as long as the longest of its batch.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> words = IterableWrapper(["1", "11", "1", "1111", "111", "1", "11", "11", "111"])
        >>> list(words.max_token_bucketize(max_token_count=5))
        [['1', '1', '1', '11'], ['11', '11'], ['111'], ['111'], ['1111']]
        """

    def mean_of_channels(self, *, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """The mean of all channels, as one."""

    def move_boxes(self, keys: str | Collection[str] = 'boxes', *, key: str | None = None, min_fraction: float = 0.5, row_keys: str | Collection[str] = ()) -> MoveBoxes:
        """Bring boxes from the voxels of the stored volume to those of the patch.

        A box is (i, j, k, i, j, k), its lowest and its highest corner; integers are voxel centres. Put
        it after the spatial pipes. No voxel is read.

        Parameters
        ----------
        keys
            Entries of the case that hold boxes (N, 6): lists, or arrays that are not among the
            ``keys=`` of ``open_volume``.
        key
            Volume whose plan moves them; by default the first lazy one.
        min_fraction
            Part of a box inside the patch, at least; others are left out. Parts outside are cut off.
            Every box stays whole for 0, also those outside.
        row_keys
            Entries of one row per box, such as their classes, which lose the same rows. It requires one
            key of boxes.

        Raises
        ------
        SampleError
            A key is missing, or holds no boxes.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> case = {"image": np.zeros((8, 8, 8), np.int16), "boxes": [[0, 1, 2, 3, 4, 5]]}
        >>> pipe = from_cases([case]).open_volume(keys=["image"]).flip(0).crop((2, 2, 2), (6, 6, 6))
        >>> next(iter(pipe.move_boxes()))["boxes"]
        [[2.0, -0.5, 0.0, 5.0, 2.0, 3.0]]

        Boxes as an array, with their classes: ``keys=`` names the volumes.

        >>> boxes = np.array([[0, 1, 2, 3, 4, 5], [6, 6, 6, 7, 7, 7]])
        >>> case = {"image": np.zeros((8, 8, 8)), "boxes": boxes, "classes": ["cyst", "tumour"]}
        >>> pipe = from_cases([case]).open_volume(keys=["image"]).crop((5, 5, 5), (3, 3, 3))
        >>> sample = next(iter(pipe.move_boxes(row_keys="classes")))
        >>> sample["boxes"], sample["classes"]
        ([[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]], ['tumour'])
        """

    def move_points(self, keys: str | Collection[str] = 'points', *, key: str | None = None, inside: bool = True, row_keys: str | Collection[str] = ()) -> MovePoints:
        """Bring points from the voxels of the stored volume to those of the patch.

        Integers are voxel centres. Put it after the spatial pipes. No voxel is read.

        Parameters
        ----------
        keys
            Entries of the case that hold points (N, 3), as those of boxes in ``move_boxes``.
        inside
            Whether points outside the patch are left out.
        key, row_keys
            As of ``move_boxes``.

        Raises
        ------
        SampleError
            A key is missing, holds no points, or a displacement that folds leads nowhere.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> case = {"image": np.zeros((8, 8, 8)), "points": [[7, 3, 3], [0, 0, 0]], "of": ["a", "b"]}
        >>> pipe = from_cases([case]).open_volume(keys=["image"]).flip(0).crop((0, 2, 2), (4, 4, 4))
        >>> sample = next(iter(pipe.move_points(row_keys="of")))
        >>> sample["points"], sample["of"]
        ([[0.0, 1.0, 1.0]], ['a'])
        """

    def mux_longest(self, *datapipes: Pipe) -> MultiplexerLongest:
        """Yield one item of each pipe in turn, until all are exhausted.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([1, 2, 3]).mux_longest(IterableWrapper([10])))
        [1, 10, 2, 3]
        """

    def noise(self, std: ParameterRange, mean: ParameterRange = 0.0, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Add normal numbers, independent from voxel to voxel of the result.

        They belong to voxels of the lattice: before patches are cut, overlapping patches agree. It
        is done after later spatial ops, so its strength does not depend on their interpolation.
        """

    def normalize(self, mean: float | None = None, std: float | None = None, above: float | None = None, inside: str | None = None, *, statistics: str = 'whole', keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Shift and scale the values; by default to mean 0 and deviation 1 over the whole volume."""

    def on_disk_cache(self, filepath_fn: Callable[[Any], Any] | None = None, hash_dict: Mapping[str, str] | None = None, hash_type: str = 'sha256', extra_check_fn: Callable[[str], bool] | None = None) -> OnDiskCacheHolder:
        """Begin a part of the chain whose results are kept on the local disk.

        ``end_caching()`` ends it; without an end, reading raises ``UnendedCache``. The part runs for
        one item at a time, and is skipped for items whose files exist.

        - ``filepath_fn``: makes the path of an item's file; by default the item is the path. If the
          item becomes other files, or several, their list is kept at this path, with ``.files.json``.
        - ``hash_dict``: hash in hexadecimal digits, by path. A file that has another one is made again;
          one that is made must have it. Every pass reads the files to check them.
        - ``hash_type``: ``"sha256"`` or ``"md5"``.
        - ``extra_check_fn``: returns whether the file at a path is valid; if not, it is made again.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> def twice(name):
        ...     print("making", name)
        ...     return name, name.encode() * 2
        >>> names = IterableWrapper(["kept/a", "kept/b"])
        >>> cached = names.on_disk_cache().map(twice).end_caching(skip_read=True)
        >>> list(cached), list(cached)
        making kept/a
        making kept/b
        (['kept/a', 'kept/b'], ['kept/a', 'kept/b'])
        """

    def one_hot(self, classes: int | tuple[int, ...], *, unknown: Literal['error', 'drop'] = 'error', keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """A channel for every class, 1 where it is and 0 elsewhere, uint8.

        Commutes with spatial ops where labels are sampled as they are by default, ``"nearest"``.
        """

    def one_of(self, ops: Sequence[Any] | Mapping[Any, float], *, weights: Sequence[float] | None = None, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> ChoicePipe:
        """Choose one of several ops, or chains of ops, by weight.

        Parameters
        ----------
        ops
            A sequence of ops, of sequences of ops, and of choices; or a mapping from op to weight.
        weights
            Relative weights; equal ones by default.
        p
            Probability that any is applied.
        """

    def open_files_by_fsspec(self, mode: str = 'r', *, kwargs_for_open: Mapping[str, Any] | None = None, **options: Any) -> FSSpecFileOpener:
        """Yield ``(path, stream)`` for each path or URL.

        A stream from a bucket or a server requests ranges as it is read, and retries transient
        failures. It can seek if the server supports ranges. Storage options and errors are those of
        :class:`FSSpecFileLister`.

        - ``mode``: ``"r"`` for text, ``"rb"`` for bytes. Any other is handed to the file system.
        - ``kwargs_for_open``: ``encoding``, ``errors`` and ``newline`` for text. With other options the
          file system's own ``open()`` is used, which retries nothing once it is open.

        Examples
        --------
        >>> import fsspec
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> fsspec.filesystem("memory").pipe("/notes/a.txt", b"hello")
        >>> pipe = IterableWrapper(["memory://notes/a.txt"]).open_files_by_fsspec("rb")
        >>> [(path, stream.read()) for path, stream in pipe]
        [('memory://notes/a.txt', b'hello')]
        """

    def open_files_by_iopath(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def open_volume(self, *, labels: Collection[str] = ('label', 'labels', 'mask', 'masks', 'seg', 'segmentation'), keys: Collection[str] | None = None, policies: Mapping[str, Policy | Mapping[str, Any]] | None = None, override: bool = False, axis_map: AxisMap | Mapping[str, AxisMap] | None = None, channels: Any = None, storage_options: Mapping[str, Any] | None = None, io: str | Mapping[str, str] = 'auto', **reader_kwargs: Any) -> OpenVolume:
        """Make a lazy volume of every path, URL, array or store in a sample.

        The parent may yield samples of :func:`list_cases` or :func:`from_cases`. Mappings of key to
        path from a torch pipe are taken, too; their position then is their identity.

        Parameters
        ----------
        labels
            Keys that hold labels: sampled by nearest neighbour, their type kept, constant 0
            outside. All other volumes are intensities: linear, border outside. Without the
            argument, a key that looks like a label but is none of these causes a
            ``LikelyLabel`` warning. Examples are gt, nuclei, cells, target and instances.
        keys
            Keys to open; by default every value that is a path, an array or a store.
        policies
            ``Policy`` by key, if it differs from the kind's own; or single fields of one,
            ``{"image": {"mode": "nearest"}}``, and the others are the kind's own.
        override
            Whether these policies override ``mode=``, ``padding=``, ``fill=``, ``dtype=`` and
            ``antialias=`` of later pipes: all of them by a ``Policy``, else the given fields. By
            default such a pipe is a conflict.
        axis_map
            ``AxisMap`` for missing, doubled or shifted sections, by key or of all volumes, whose
            labels are then filled with 0. Where cases differ, give each
            ``Volume(path).with_axis_map(...)`` instead of a path. With ``policy="mask"`` the sample
            also gets ``image_stored``, in float32: the stored share of each value of ``image``. It
            is 0 where all is filled in, or outside. For a label volume it is 0 or 1, in uint8.
        channels
            Names in the file, ``["DAPI"]``, or numbers from 0; no others are read. One
            value is for all volumes that are no labels; a mapping is by key.
        storage_options
            For fsspec, where paths are URLs. They never appear in messages or states. By default
            those of ``list_cases()``, for URLs in the bucket that it listed. They are by key where
            each value is a mapping, or None.
        io
            How bare voxels of local files are read: ``"mmap"``, ``"pread"`` or ``"auto"``. The last
            maps files on disks of this machine, and reads those on network file systems. The batches
            are the same.
        **reader_kwargs
            For :class:`Volume`: ``reader=``, ``affine=`` in place of the stored one, ``level=1`` for
            a pyramid, ``axes="zyx"`` for an array that does not name its axes, ``dataset="ct"`` of an
            HDF5 file, ``series=``, ``follow="anywhere"`` for headers and links that lead out of their
            folders, and arguments of your own backend or reader. These and ``io`` are one value for all
            volumes, or a mapping by key: ``affine={"label": matrix}``. A label without a voxel size
            takes the place of its image by ``affine={"label": "image"}``; both need one shape and
            one order of axes. A Volume takes ``affine=``, too, unless it has one of its own.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> sample = next(iter(from_cases([{"image": np.zeros((4, 5, 6))}]).open_volume()))
        >>> sample["image"].shape
        (1, 4, 5, 6)
        """

    def orientation(self, axcodes: str = 'RAS', *, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Swap and mirror the axes so that each points most nearly to its letter.

        ``"RAS"``: i towards the right, j to the front, k up, which nibabel calls closest canonical.
        Nothing is interpolated, and every voxel stays in its place in the world. After ``to_axes()``
        letters that would undo its order are refused.
        """

    def pad(self, amount: int | Sequence[int | tuple[int, int]] | None = None, size: Size | None = None, side: Side = 'end', *, sides: Sides = 'both', name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Add voxels before and after on each axis: a number of voxels, or up to a size.

        The policy's padding fills the new voxels, but a soft crop shows the voxels around it.
        """

    def parse_csv(self, *, skip_lines: int = 0, decode: bool = True, encoding: str = 'utf-8', errors: str = 'ignore', return_path: bool = False, as_tuple: bool = False, **fmtparams: Any) -> CSVParser:
        """Yield each row of each CSV file as a list of texts; files are closed.

        The parent yields ``(path, stream)``, of bytes or of text. A file that cannot be decoded, or is
        no CSV, is a ``StreamError``.

        - ``skip_lines``: lines left out at the beginning of each file.
        - ``decode``, ``encoding``, ``errors``: whether and how bytes become text; undecodable bytes are
          left out by default.
        - ``return_path``: whether each row comes with the path of its file.
        - ``as_tuple``: whether rows are tuples.
        - other keywords: of ``csv.reader``, such as ``delimiter`` and ``quotechar``.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> files = [("a.csv", io.BytesIO(b'key;item\\na;"1\\n2"\\n'))]
        >>> list(IterableWrapper(files, deepcopy=False).parse_csv(delimiter=";"))
        [['key', 'item'], ['a', '1\\n2']]
        """

    def parse_csv_as_dict(self, skip_lines: int = 0, decode: bool = True, encoding: str = 'utf-8', errors: str = 'ignore', return_path: bool = False, **fmtparams: Any) -> CSVDictParser:
        """Yield each row of each CSV file as a dict by the names in its first row; files are closed.

        Arguments are those of :class:`CSVParser`, and of ``csv.DictReader``. The lines that are left
        out come before the names.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> files = [("a.csv", io.StringIO("key,item\\na,1\\nb,2\\n"))]
        >>> list(IterableWrapper(files, deepcopy=False).parse_csv_as_dict())
        [{'key': 'a', 'item': '1'}, {'key': 'b', 'item': '2'}]
        """

    def parse_json_files(self, **kwargs: Any) -> JsonParser:
        """Yield ``(path, contents)`` for each ``(path, stream)`` of JSON; files are closed.

        Streams are of bytes or of text; keywords are of ``json.loads``. A file that is no JSON is a
        ``json.JSONDecodeError``, with a note that names it.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> files = [("a.json", io.BytesIO(b'{"spacing": [1, 1, 2.5]}'))]
        >>> list(IterableWrapper(files, deepcopy=False).parse_json_files())
        [('a.json', {'spacing': [1, 1, 2.5]})]
        """

    def per_channel(self, op: ValueOp, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Apply an op to each channel on its own: its ``p`` and its amounts are drawn for each.

        As in nnU-Net, ``p`` is the probability of the image, and the op's that of each channel.
        So are statistics, of the volume and of the patch: ``per_channel(Normalize())`` gives each
        channel mean 0 and deviation 1.
        """

    def pin_memory(self, device: str | int | torch.device | None = None, pin_memory_fn: Callable[..., Any] = ..., *, buffer_bytes: int = 268435456) -> PinMemory:
        """Copy the tensors of each item into page-locked memory, in a thread, two items ahead.

        Batches of a ``DataLoader2`` with workers are in page-locked memory already, once CUDA has
        been initialised. This pipe is not replicable: a loader runs it in its own process.

        ``pin_memory_fn(item, device)`` copies an item; the default goes into mappings, lists and
        tuples. The default of ``device`` is the current CUDA device; without CUDA the construction
        raises ``NoDevice``, a ``RuntimeError``. Items made ahead take at most ``buffer_bytes``.
        """

    def prefetch(self, buffer_size: int = 10, *, buffer_bytes: int = 268435456) -> Prefetcher:
        """Make items in a thread before they are asked for; nothing else changes.

        Parameters
        ----------
        buffer_size
            Items that are made ahead.
        buffer_bytes
            Bytes that they may take; a single item may take more. One more item can be in the making.

        Notes
        -----
        The thread belongs to the iterator that began it. It ends with the last item, with an error
        (raised after the items before it), or when the iterator is dropped. A copied or unpickled pipe
        begins without items. The global generators of ``random``, NumPy and torch are shared with the
        rest of the program. So draws of earlier functions from them are not repeatable.

        After the voxels of a ``DataLoader2`` whose graph is split, workers make whole batches ahead
        anyway, and this pipe adds nothing. Without workers it makes that many batches ahead, unless
        the chain runs a function of yours or ``Timeout`` watches.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(3)).prefetch(2))
        [0, 1, 2]
        """

    def random_apply(self, ops: Sequence[Any] | Mapping[Any, float], *, p: float = 0.5, keys: str | Collection[str] | None = None, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> ChoicePipe:
        """Apply all of ``ops`` in turn, or none of them, with probability ``p``."""

    def random_crop(self, size: int | Sequence[int | tuple[int, int]] | None = None, *, scale: float | Sequence[float | tuple[float, float]] | None = None, center: bool = False, hard: bool = False, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Keep a box whose size or place is drawn; every place where it fits is as likely.

        Each axis draws its own size from (low, high): whole voxels, ends included, equally likely.
        """

    def random_morphology(self, radius: ParameterRange = (1.0, 8.0), operators: tuple[str, ...] = ('dilate', 'erode', 'close', 'open'), *, p_channel: float = 1.0, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Grow, shrink, close or open each channel's mask by a ball; growth takes from others.

        nnU-Net does this to the segmentation of a coarser network that it is given, so that it does not
        learn to copy it. It acts on the patch: at its faces nothing is worn off.
        """

    def random_order(self, ops: Sequence[Any] | Mapping[Any, float], *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> ChoicePipe:
        """Apply all of ``ops``, in an order that is drawn per item."""

    def random_split(self, weights: Mapping[Any, float], seed: int, total_length: int | None = None, target: Any = None) -> ChainedForms:
        """Return a list of pipes among which the parent's items are divided at random.

        The same seed divides as it does in torchdata 0.9. Nothing is buffered: one part can be
        iterated at a time, and each goes through the whole parent. The parent has to yield the same
        items in the same order whenever it is iterated: split before you shuffle.

        Parameters
        ----------
        weights
            Weight by name of the part. Whole numbers that add up to ``total_length`` are the
            lengths of the parts.
        seed
            Of the division. It stays from epoch to epoch, so that nothing of one part ever comes up
            in another; ``override_seed`` of any part changes it for all.
        total_length
            Number of items, by default ``len()`` of the parent; more of them are a ``ValueError``.
        target
            Name of the one part to return instead of the list.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> train, valid = IterableWrapper(range(10)).random_split({"train": 0.5, "valid": 0.5}, seed=0)
        >>> list(train), list(valid)
        ([2, 3, 5, 7, 8], [0, 1, 4, 6, 9])
        """

    def read_from_gdrive(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def read_from_http(self, timeout: float | None = None, skip_on_error: bool = False, *, max_concurrency: int = 1, buffer_bytes: int = 268435456, **options: Any) -> HttpReader:
        """Yield ``(URL, stream of bytes)`` for each URL of a web server.

        The file arrives as it is read. Where the connection breaks, the rest is requested again from
        there on. Where the server knows ranges the stream can go back.

        - ``timeout``: seconds after which a server that does not answer, or keeps failing, is given up:
          at the beginning, and each time that more is read. By default 20 for one attempt, and 30 for
          all; see ``$VOXPIPE_REMOTE_DEADLINE``.
        - ``skip_on_error``: Whether a URL that cannot be opened is left out, with a warning.
        - ``max_concurrency``: Files that are requested at once, in threads; their order is kept. An
          error is raised, or left out, when it is the turn of its file. When the pass ends or is
          abandoned, requests end as calls of ``threadpool_map`` do.
        - ``buffer_bytes``: Bytes of all waiting files.
        - ``storage_options``, or plain keywords: ``headers``, ``params``, ``cookies``, ``auth`` (a
          pair), ``verify``, ``cert``, ``proxies``, ``allow_redirects``, as of requests. They are never
          written anywhere.

        Raises
        ------
        VolumeNotFound, StoreUnavailable, VolumeReadError
            There is nothing at a URL, the server kept failing for that long, or any other answer.
        StreamError
            While reading: the file changed in between.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> urls = IterableWrapper(["https://host/a.nii.gz?token=secret"])
        >>> urls.read_from_http(timeout=60, auth=("me", "secret"))
        read_from_http(timeout=60, storage_options={…})
        """

    def read_from_remote(self, timeout: float | None = None, skip_on_error: bool = False, *, max_concurrency: int = 1, buffer_bytes: int = 268435456, **options: Any) -> OnlineReader:
        """Yield ``(URL, stream of bytes)`` for each URL of a web server, as ``read_from_http``.

        Parameters are those of :class:`HttpReader`. Links of Google Drive, which torchdata read here
        too, are refused with ``NotOffered``.
        """

    def readlines(self, *, skip_lines: int = 0, strip_newline: bool = True, decode: bool = False, encoding: str = 'utf-8', errors: str = 'ignore', return_path: bool = True) -> LineReader:
        """Yield ``(path, line)`` for each line of each ``(path, stream)``; files are closed.

        Arguments are those of :class:`CSVParser`. By default bytes stay bytes, lines lose their ends
        (``strip_newline``), and each comes with the path of its file. Undecodable bytes are a
        ``StreamError`` with ``errors="strict"``.

        Examples
        --------
        >>> import io
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> files = [("a.txt", io.StringIO("one\\ntwo\\r\\n")), ("b.txt", io.StringIO("three"))]
        >>> list(IterableWrapper(files, deepcopy=False).readlines())
        [('a.txt', 'one'), ('a.txt', 'two'), ('b.txt', 'three')]
        """

    def realize(self) -> Realize:
        """Read and resample every lazy patch of a sample; the rest passes through.

        Each becomes a tensor (C, I, J, K). Labels have their stored type, intensities float32, or
        their stored type after lattice ops (crop, flip, ...) alone. The pipe is for functions that
        need voxels before ``batch_patches``, which realizes by itself.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> volume = np.arange(8, dtype=np.int16).reshape(2, 2, 2)
        >>> sample = next(iter(from_cases([{"image": volume}]).open_volume().realize()))
        >>> sample["image"].flatten().tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
        """

    def regions(self, classes: tuple[int | tuple[int, ...], ...], *, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """A channel for every region, 1 where one of its labels is and 0 elsewhere, uint8.

        Regions may overlap, unlike the classes of ``one_hot``: the whole tumour holds its core. Labels
        of no region are 0 everywhere. Commutes with spatial ops as ``remap_labels`` does.
        """

    def remap_labels(self, mapping: Mapping[int, int], *, unknown: int | None = None, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Give labels other numbers; several may become one.

        Commutes with spatial ops with the default sampling, ``"nearest"``; remaps the fill, too.
        """

    def repeat(self, times: int) -> Repeater:
        """Yield each item of the parent ``times`` times (at least 2), one after the other.

        The very same object is yielded. Only a sample gets an identity of its own from the second
        time on, so that random pipes further down draw something else for it.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(3)).repeat(2))
        [0, 0, 1, 1, 2, 2]
        """

    def replay(self, draws: Mapping[str, Any]) -> Replay:
        """Apply the draws of a record to every sample, in place of new draws.

        Put it after the pipes of the record. For the same augmentation of another volume, of a
        prediction, or of a sample to see again.

        For random numbers per voxel (noise), the record has their key. They are the same for the same
        places in patches, under keys of the same names. So are those of your own ops that pass a drawn
        number to ``facts.key_from``.

        Parameters
        ----------
        draws
            By name of stream: ``batch["meta"][n]["draws"]``, also after JSON. Pipes that are not in it
            draw for themselves.

        Raises
        ------
        BadRecord
            A pipe upstream could not have drawn its record. For a choice the message has the path of
            the member: ``drawn[0][1]`` is the second op of the first member that was chosen.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> def chain(volume):
        ...     return from_cases([{"image": volume}]).open_volume().rotate((-15, 15))
        >>> first = next(iter(chain(np.zeros((8, 8, 8)))))["image"]
        >>> other = next(iter(chain(np.ones((8, 8, 8))).replay(first.draws)))["image"]
        >>> other.draws == first.draws
        True
        """

    def resample_to(self, grid: Grid | str, *, keys: str | Collection[str] | None = None, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Resample volumes to one grid: each voxel then has the value at its place in the world.

        It is part of the one interpolation that the plan of each volume is.

        Parameters
        ----------
        grid
            A ``Grid(shape, affine)``, for all volumes alike, anywhere among the spatial pipes. Or the
            key of a volume, whose grid the others get. Then it comes right after ``open_volume``:
            volumes on different grids have no spatial op in common before.
        keys
            With a key: the volumes to resample, by default all others. Volumes that are not named must
            have its grid.

        Raises
        ------
        SampleError
            A sample has no volume of that key, or a spatial pipe came before.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> case = {"ct": np.zeros((8, 8, 8)), "pet": np.zeros((4, 4, 4))}
        >>> pipe = from_cases([case]).open_volume().resample_to("ct").lazy_patch(4)
        >>> [patch.shape for patch in next(iter(pipe)).values()]
        [(1, 4, 4, 4), (1, 4, 4, 4)]
        """

    def rescale(self, out_range: tuple[float, float] = (0.0, 1.0), in_range: tuple[float, float] | None = None, clamp: bool = False, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Bring the range of the volume, or a given one, to ``out_range``."""

    def rescale_percentiles(self, lower: float = 0.5, upper: float = 99.5, out_range: tuple[float, float] = (0.0, 1.0), clamp: bool = True, above: float | None = None, inside: str | None = None, *, statistics: str = 'whole', p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Map two percentiles of the volume to ``out_range``, and clamp values beyond.

        ``a2 + (b2 - a2) * (value - a) / (b - a)``, where ``a`` and ``b`` are percentiles:
        linear between the two values next in rank, as ``numpy.percentile`` has them.

        References
        ----------
        Nyul and Udupa, "On standardizing the MR image intensity scale", Magnetic Resonance in Medicine
        42 (1999): why percentiles. Hyndman and Fan, "Sample quantiles in statistical packages", The
        American Statistician 50 (1996): which, their definition 7.
        """

    def resize(self, size: int | Sequence[int | None] | None, *, longest: bool = False, extent: Extent = 'edges', name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Give the grid ``size`` voxels over the present extent.

        With ``extent="edges"`` the outer faces of the grid stay: n voxels become m at n/m times the
        distance. With ``"centers"`` the first and last voxel centre stay: the distance is multiplied by
        (n-1)/(m-1). A single voxel is put in the middle.
        """

    def rician_noise(self, std: ParameterRange, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """The noise of magnitude images: normal noise in both parts of a complex number.

        ``sqrt((value + a) ** 2 + b ** 2)``, with ``a`` and ``b`` normal, of mean 0 and deviation
        ``std``. For a value ``v`` it follows the Rice distribution of ``v`` and ``std``.

        References
        ----------
        Gudbjartsson and Patz, "The Rician distribution of noisy MRI data", Magnetic Resonance in
        Medicine 34 (1995).
        """

    def rotate(self, degrees: Amount, method: Literal['forward', 'backward'] = 'forward', *, space: Space = 'world', keep_size: bool = True, p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Turn by ``Rz @ Ry @ Rx``: about x first, then y, then z.

        ``15`` turns each time by just 15 degrees about each axis; ``(-15, 15)`` draws the angles.

        Right-handed: +90 degrees about z moves content from +x to +y. 2-D data turn in their plane, by
        the angle about the axis nearest to its normal.
        """

    def rotate90(self, k: int | Sequence[int] = 1, axes: Sequence[Axis] = (0, 1), *, p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Turn by ``k`` quarter turns from the first axis towards the second, as ``numpy.rot90``.

        The array turns at any spacing: odd ``k`` swap the axes' lengths, and the affine follows.
        """

    def round_robin_demux(self, num_instances: int, buffer_size: int = 1000, *, buffer_bytes: int | None = None) -> list[Any]:
        """Return a list of ``num_instances`` pipes among which the items are dealt out in turn.

        One pipe is the parent itself, with a warning. The limits of waiting items are as of
        :class:`UnZipper`: ``buffer_size`` counts the items of all pipes. More raise ``BufferError``.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> even, odd = IterableWrapper(range(5)).round_robin_demux(2)
        >>> list(even), len(odd), list(odd)
        ([0, 2, 4], 2, [1, 3])
        """

    def rows2columnar(self, column_names: Collection[str] | None = None) -> Rows2Columnar:
        """Make a mapping from column to values of each batch, a list of rows.

        ``column_names`` chooses the columns of rows that are mappings, all by default. It names those
        of rows that are lists. A missing column is a ``KeyError``, more values than names a
        ``ValueError``.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> [dict(batch) for batch in IterableWrapper([[{"a": 1}, {"a": 2}]]).rows2columnar()]
        [{'a': [1, 2]}]
        >>> [dict(batch) for batch in IterableWrapper([[[1, 2], [3, 4]]]).rows2columnar(["a", "b"])]
        [{'a': [1, 3], 'b': [2, 4]}]
        """

    def save_by_fsspec(self, mode: str = 'w', filepath_fn: Callable[[Any], Any] | None = None, *, kwargs_for_open: Mapping[str, Any] | None = None, **options: Any) -> FSSpecSaver:
        """Write the data of each ``(name, data)`` to a path or URL, and yield that.

        Data are bytes, text (as UTF-8) or an open file, which is read and closed. Whole objects are put
        in one go, so a failed attempt is simply made again. Local files appear whole, and their folders
        are made. Storage options and errors are those of :class:`FSSpecFileLister`.

        - ``mode``: ``"w"`` or ``"wb"``; ``"a"`` and the like append, where the storage can, once.
        - ``filepath_fn``: makes the path or URL of the name; by default the name is the URL.
        - ``kwargs_for_open``: of ``fs.open()``, e.g. ``compression``; the file is then written once.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("memory://out/1.txt", b"one")]).save_by_fsspec("wb"))
        ['memory://out/1.txt']
        """

    def save_by_iopath(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def save_to_disk(self, mode: str = 'w', filepath_fn: Callable[[Any], Any] | None = None) -> Saver:
        """Write the data of each ``(name, data)`` to a file and yield its path.

        Data are bytes, text (written as UTF-8), or an open file, which is copied in pieces and closed;
        others are a ``SampleError``. A file appears whole, under its name, or not at all; folders are
        made. An existing file is replaced.

        ``filepath_fn`` makes the path of the name; by default the name is the path. ``mode`` (``"w"``,
        ``"wt"`` or ``"wb"``) has no effect: the type of the data decides.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([("out/1.txt", b"one")]).save_to_disk(mode="wb"))
        ['out/1.txt']
        """

    def select_channels(self, indices: int | str | tuple[int | str, ...], *, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """Keep some channels, in the order given."""

    def set_length(self, length: int) -> LengthSetter:
        """Set the length of a parent without a known one: after ``filter``, for instance.

        All items of the parent are yielded, however many they are.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> len(IterableWrapper(range(10)).filter(bool).set_length(9))
        9
        """

    def shard_expand(self) -> ShardExpander:
        """Yield the names of shards that patterns like ``"ct-{000..127}.tar"`` stand for.

        The last of several ranges is the fastest. A name without one stands for itself. No storage is
        read.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(["ct-{09..11}.tar", "extra.tar"]).shard_expand())
        ['ct-09.tar', 'ct-10.tar', 'ct-11.tar', 'extra.tar']
        >>> list(IterableWrapper(["{a}-{8..10}", "{0..1}{0..1}"]).shard_expand())
        ['{a}-8', '{a}-9', '{a}-10', '00', '01', '10', '11']
        """

    def sharding_round_robin_dispatch(self, sharding_group_filter: SHARDING_PRIORITIES | None = None) -> ShardingRoundRobinDispatcher:
        """Mark that everything above runs in one process, which deals its items out to the workers.

        By itself it passes the items on. A reading service with workers runs the pipes before it once,
        in the process of the loader, and the pipes after it in the workers. Several such pipes in
        merging branches act as one, where the branches merge. ``sharding_group_filter`` must be
        ``SHARDING_PRIORITIES.MULTIPROCESSING``.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> once = IterableWrapper(range(3))
        >>> list(once.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING))
        [0, 1, 2]
        """

    def sharpen(self, sigma: ParameterRange, unit: str = 'mm', amount: ParameterRange = 1.0, *, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '') -> ValuePipe:
        """``value + amount * (value - blurred)``, an unsharp mask."""

    def shear(self, factor: Amount, *, space: Space = 'world', p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Slide by the factors (xy, xz, yz); volumes keep their size, the grid its shape.

        Content moves from (x, y, z), seen from the centre, to ``(x + xy*y + xz*z, y + yz*z, z)``.
        """

    def shuffle_plans(self, spec: ShuffleSpec | None = None) -> ShufflePlans:
        """Shuffle patches before anything is read: descriptions change places.

        The order is a function of (seed, epoch): the same under any number of workers and after a
        resume. Where items have numbers, no plan is made before its turn. ``chunk_local`` keeps 16
        bytes per visit then. Elsewhere all descriptions are kept, a kilobyte each, or those of a
        window. The cost and the mixing of an order are reported by ``shuffle_report()``, without
        reading a voxel.

        ``chunk_local`` reads the header of the first case, to estimate how many visits fit into memory.
        Each worker has a cache of its own, and gets the batches of the same visits if no other worker
        has to wait for that.

        Parameters
        ----------
        spec
            A :class:`ShuffleSpec`; by default all patches of the epoch.

        Raises
        ------
        SampleError
            At construction, if ``spec`` is none.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> cases = [{"case": name, "image": np.zeros((8, 8, 8))} for name in "abc"]
        >>> pipe = from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=4)
        >>> local = pipe.shuffle_plans(ShuffleSpec.chunk_local(1))
        >>> mixed = [patch.case for patch in local]
        >>> [len(set(mixed[n : n + 4])) for n in (0, 4, 8)]  # one volume after another
        [1, 1, 1]
        >>> len(set(patch.identity for patch in pipe.shuffle_plans()))
        12
        """

    def shuffled_flatmap(self, fn: Callable[..., Iterable[Any]] | None = None, input_col: int | str | Sequence[int | str] | None = None, buffer_size: int = 100) -> ShuffledFlatMapper:
        """Apply a function to each item, and yield the results of several items mixed.

        The next item is drawn from ``buffer_size`` results; within one result the order stays. Each is
        read one item at a time, so the items of a generator are not held. Without shuffling it is
        :class:`FlatMapper`, whose arguments it has.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> sorted(IterableWrapper([[1, 2], [3], [4]]).shuffled_flatmap(buffer_size=2))
        [1, 2, 3, 4]
        """

    def slice(self, index: Hashable | list[Hashable], stop: int | None = None, step: int | None = None) -> Slicer:
        """Keep columns of tuples and lists, or keys of mappings.

        ``index`` is the start of a slice, or a list of indices or keys, kept in the order of the item.
        ``stop`` and ``step`` have no effect for a list, and for mappings. Missing columns, and items
        without columns, cause one warning.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> rows = IterableWrapper([(0, 10, 100), (1, 11, 111)])
        >>> list(rows.slice(0, 2)), list(rows.slice([2]))
        ([(0, 10), (1, 11)], [(100,), (111,)])
        """

    def some_of(self, ops: Sequence[Any] | Mapping[Any, float], count: int | tuple[int, int], *, weights: Sequence[float] | None = None, p: float = 1.0, keys: str | Collection[str] | None = None, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> ChoicePipe:
        """Choose ``count`` different ops, which act in the order given.

        Parameters
        ----------
        ops, weights, p
            As for :func:`OneOf`.
        count
            How many: a number, or (least, most).
        """

    def spacing(self, spacing: float | Sequence[float | tuple[float, float] | None], *, unit: str = 'mm', extent: Extent = 'edges', name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Bring neighbouring voxels to a distance in millimetres along the axes of the array.

        The distance is exact; the number of voxels is rounded to meet the extent. With
        ``extent="edges"`` n voxels at a become ``round(n * a / b)`` at b, about the same centre. With
        ``"centers"`` the first voxel stays, and the number is ``round((n - 1) * a / b + 1)``. Halves
        round to even, and rounding noise of headers (50.4999997) counts as a half.
        """

    def stack(self, keys: Sequence[str], name: str = 'image') -> Stack:
        """Make several volumes the channels of one, in one slot of the batch.

        The voxels of each are read and interpolated straight into their channels; no file is read
        twice, and nothing is copied together. Files that always belong together need no pipe: a case
        ``{"image": ["t1.nii.gz", "t2.nii.gz"]}`` is opened as a volume of their channels.

        The type of the result is the one that holds all of theirs (``np.result_type``): float32 for
        volumes that are interpolated. A label among intensities is sampled as a label.

        Later value pipes use all channels together: ``normalize()`` has one mean for all of them.
        Before ``stack`` it has one for each volume. Spatial pipes fuse across ``stack``.

        Parameters
        ----------
        keys
            Volumes, in the order of their channels. They leave the sample.
        name
            The key that they become, at the place of the first of them.

        Raises
        ------
        GridMismatch
            When patches are made: the grids of the volumes differ, and by how much.
        SampleError
            A key is missing, or the name is taken.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> case = {"t1": np.zeros((4, 5, 6)), "t2": np.ones((4, 5, 6))}
        >>> pipe = from_cases([case]).open_volume().center_crop(2).stack(("t1", "t2"), "image")
        >>> sample = next(iter(pipe))
        >>> list(sample), sample["image"].shape
        (['image'], (2, 2, 2, 2))
        """

    def stitch(self, key: str, destination: str | os.PathLike[str] | None = None, *, blend: str = 'gaussian', sigma_scale: float | Sequence[float] | None = None, output: str = 'argmax', dtype: DTypeLike | None = None, like: str | None = None, run: str = '', memory_bytes: int = 536870912, overwrite: bool = False, storage_options: Mapping[str, Any] | None = None) -> Stitch:
        """Blend a model's outputs for windows; yield the volumes that each batch has finished.

        Windows are those of ``lazy_patch(sampling="grid", overlap=...)``, gathered by
        ``batch_patches()``. They may come in any order, and mix several volumes. Each batch yields one
        mapping, ``{case: Volume}``, empty until the last window of a volume has come. This pipe is not
        replicable: a loader runs it in its own process, after its workers.

        Parameters
        ----------
        key
            Key of the model's output in a batch: a tensor or array (B, C, I, J, K).
        destination
            As of ``predict()``: a path or URL with ``{case}`` in it, an array, None for volumes in
            memory, or ``f(case)`` that returns one of these.
        blend, sigma_scale, output, dtype, memory_bytes, overwrite, storage_options
            As of ``predict()``.
        like
            The volume of the sample whose grid counts; by default the first.
        run
            A word that is another for other weights. With it a run that was killed goes on: windows
            that were added are read, and not added again. Else it begins anew.

        Raises
        ------
        SampleError
            A batch has no such entry, or its patches are no windows. Two cases have one name. Windows
            of a volume are missing at the end.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.ones((4, 4, 4)), "case": "a"}]).open_volume()
        >>> pipe = pipe.lazy_patch(2, sampling="grid").batch_patches(4)
        >>> pipe = pipe.map(lambda image: 2 * image, "image", "twice")
        >>> for volumes in pipe.stitch("twice", output="logits"):
        ...     for case, volume in volumes.items():
        ...         print(case, volume.shape, volume.numpy().mean())
        a (1, 4, 4, 4) 2.0
        """

    def threadpool_map(self, fn: Callable[..., Any], input_col: int | str | Sequence[int | str] | None = None, output_col: int | str | None = None, scheduled_tasks: int = 128, max_workers: int | None = None, *, buffer_bytes: int = 268435456, **threadpool_kwargs: Any) -> ThreadPoolMapper:
        """Apply a function to each item in a pool of threads; the order of the items is kept.

        Draws of the function from the global generators of ``random``, NumPy or torch depend on the
        order of the threads. An error is raised when it is the turn of its item. When the pass ends,
        fails or is abandoned, calls that have not begun are cancelled and the others awaited. They have
        2 s, or the ``Timeout(stop=...)`` of a loader. All such pipes of a chain together wait half as
        long again. Then a warning names the thread.

        - ``fn``: should release Python's lock, as reading, NumPy and torch do, for threads to pay.
        - ``input_col``: as of :class:`FlatMapper`.
        - ``output_col``: place of the result; by default that of the (first) input, whose others are
          removed. -1 is the end of a list or tuple.
        - ``scheduled_tasks``: calls that are under way or waiting for their turn, at most.
        - ``buffer_bytes``: bytes that results may take: there are as many calls at once as results of
          the largest size seen so far fit, at least one.
        - ``max_workers``, and other keywords: as of ``ThreadPoolExecutor``.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([1, -2, 3]).threadpool_map(abs, max_workers=2))
        [1, 2, 3]
        """

    def to_axes(self, axes: str | None = None, *, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Put the axes in the order of their names, for all that follows.

        Later sizes, spacings, angles and other amounts per axis are in this order, as shapes and
        tensors are. Nothing is interpolated or copied. Every voxel stays in its place in the world.

        Raises
        ------
        BadHeader
            When patches are made: the file does not name its axes.
        PatchSizeError
            Two letters are given, and the volume has several voxels along the third axis.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.zeros((20, 48, 64))}]).open_volume(axes="zyx")
        >>> next(iter(pipe.to_axes("zyx").lazy_patch((8, 16, 32))))["image"].shape
        (1, 8, 16, 32)
        """

    def to_device(self, device: str | int | torch.device, *, non_blocking: bool = True) -> ToDevice:
        """Move every tensor of an item to a device; other values stay.

        This pipe is not replicable: a loader runs it in its own process, after its workers. A device
        is as torch takes it (``"cuda"``, ``"cuda:1"``, ``torch.device("cpu")``). One that is not there
        raises ``NoDevice``, a ``RuntimeError``, at construction. ``non_blocking`` goes on while tensors
        in page-locked memory are copied.

        Examples
        --------
        >>> import torch
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper([{"image": torch.ones(2), "case": "a"}]).to_device("cpu")
        >>> list(pipe)
        [{'image': tensor([1., 1.]), 'case': 'a'}]
        """

    def to_map_datapipe(self, key_value_fn: Callable[[Any], tuple[Hashable, Any]] | None = None) -> IterToMapConverter:
        """Hold the items of a pipe by key; they are loaded at the first access.

        ``key_value_fn`` returns key and value of an item; without it every item is such a pair. The
        later value of a repeated key replaces the earlier one, with a warning. An unknown key is an
        ``IndexError``.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> ages = IterableWrapper([("a.nii", 44), ("b.nii", 61)]).to_map_datapipe()
        >>> ages["b.nii"], len(ages)
        (61, 2)
        """

    def to_metatensor(self) -> ToMetaTensor:
        """Make MONAI's ``MetaTensor`` of each volume of a batch, or of a realized sample.

        Each has the affine of its patch, that of the stored volume, spatial shape, file and case, as
        from MONAI's readers and ``list_data_collate``. So ``decollate_batch`` can split a batch; it
        cannot split lists of mappings, therefore ``meta`` is removed. Voxels are not copied. This pipe
        is not replicable: a loader runs it in its own process, after its workers.

        Raises
        ------
        SampleError
            It is no batch with ``meta``, and no sample.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.zeros((4, 5, 6))}] * 2).open_volume().batch_patches(2)
        >>> image = next(iter(pipe.to_metatensor()))["image"]
        >>> type(image).__name__, image.affine.shape, image.meta["spatial_shape"].tolist()
        ('MetaTensor', torch.Size([2, 4, 4]), [[4, 5, 6], [4, 5, 6]])
        """

    def to_subject(self, labels: str | Collection[str] | None = None) -> ToSubject:
        """Make TorchIO's ``Subject`` of each sample, or a list of them of each batch.

        In a batch, ``labels`` become ``LabelMap``; a ``Subject`` holds its sample's provenance as
        ``meta``. Tensors share the memory of the batch. This pipe is not replicable: a loader runs it
        in its own process, after its workers.

        Parameters
        ----------
        labels
            Keys of labels in a batch; by default those of ``open_volume()``. A sample knows its own.

        Raises
        ------
        SampleError
            There is no volume, or no batch with ``meta``.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> case = {"image": np.zeros((4, 4, 4), np.float32), "label": np.zeros((4, 4, 4), np.uint8)}
        >>> pipe = from_cases([case] * 2).open_volume()
        >>> (first, second) = next(iter(pipe.batch_patches(2).to_subject()))
        >>> first["label"].__class__.__name__, first["image"].shape
        ('LabelMap', (1, 4, 4, 4))
        """

    def translate(self, amount: Amount, *, unit: str = 'mm', space: Space = 'world', p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Move the content by ``amount``: millimetres in world space, voxels in voxel space."""

    def transpose(self, axes: Sequence[Axis] = (2, 1, 0), *, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Put the axes of the array in another order, as ``numpy.transpose``; the affine follows.

        ``(2, 1, 0)`` is the order of SimpleITK's arrays, and so of nnU-Net: K, J, I.
        """

    def unstack(self, key: str, names: Sequence[str]) -> Unstack:
        """Make each channel of a volume a volume of its own.

        A read of a chunked or mapped file covers only that channel; of a list of files, only its file.

        Parameters
        ----------
        key
            The volume, which leaves the sample.
        names
            A key for each channel.

        Raises
        ------
        PatchSizeError
            There are more channels than names, or fewer.
        SampleError
            The key is missing, or a name is taken.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.zeros((2, 4, 5, 6))}]).open_volume()
        >>> sample = next(iter(pipe.unstack("image", ("t1", "t2"))))
        >>> {key: patch.shape for key, patch in sample.items()}
        {'t1': (1, 4, 5, 6), 't2': (1, 4, 5, 6)}
        """

    def unzip(self, sequence_length: int, buffer_size: int = 1000, columns_to_skip: Sequence[int] | None = None, *, buffer_bytes: int | None = None) -> list[Branch]:
        """Return a list of pipes, one per column of the parent's sequences.

        - ``sequence_length``: number of columns; those in ``columns_to_skip`` have no pipe.
        - ``buffer_size``: how far one pipe may be read beyond another, in items; -1 for any distance.
        - ``buffer_bytes``: bytes of waiting items, with the data of arrays and tensors; one item of
          each pipe may take more. None for 1 GiB, or for any number if ``buffer_size`` is -1.

        A pipe that is read too far beyond another raises ``BufferError``.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> numbers, letters = IterableWrapper([(0, "a"), (1, "b")]).unzip(2)
        >>> list(numbers), list(letters)
        ([0, 1], ['a', 'b'])
        """

    def webdataset(self, *, decode: bool = False) -> WebDataset:
        """Yield ``{"__key__": name, ".jpg": data, ".cls": data, ...}`` of adjacent members.

        The parent yields ``(path, data)``, e.g. of ``load_from_tar``. Members of one sample share their
        path up to the first dot of the name and follow each other; the rest of the name is the key.
        Those without a suffix are left out. Two members of one suffix are a ``StreamError``.

        With ``decode`` streams are read and become values: ``.txt`` text, ``.cls`` and the like a
        number, ``.json`` its contents, ``.npy`` an array, everything else bytes. Pickles (``.pyd``,
        ``.pth``, ...), and members that do not match their suffix, raise ``StreamError``. Without
        ``decode`` data pass as they are. If the archive arrives as a stream, read them (by ``map``)
        before this pipe, which takes members until the next sample.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> members = [("a.tar/0.txt", b"ct"), ("a.tar/0.cls", b"3"), ("a.tar/1.txt", b"mr")]
        >>> for sample in IterableWrapper(members).webdataset(decode=True):
        ...     print(sample)
        {'__key__': 'a.tar/0', '.txt': 'ct', '.cls': 3}
        {'__key__': 'a.tar/1', '.txt': 'mr'}
        """

    def zip_longest(self, *datapipes: Pipe, fill_value: Any = None) -> ZipperLongest:
        """Yield tuples of one item of each pipe, until all are exhausted.

        ``fill_value`` replaces the items of a pipe that has ended.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper([1, 2]).zip_longest(IterableWrapper([10]), fill_value=-1))
        [(1, 10), (2, -1)]
        """

    def zip_with_iter(self, ref_datapipe: IterDataPipe[Any], key_fn: Callable[[Any], Hashable], ref_key_fn: Callable[[Any], Hashable] | None = None, keep_key: bool = False, buffer_size: int | None = 10000, merge_fn: Callable[[Any, Any], Any] | None = None, *, buffer_bytes: int | None = None) -> IterKeyZipper:
        """Yield each item together with the item of another pipe that has the same key.

        The order is the parent's. The other pipe is read until a key matches; items passed over are
        kept for later. Beyond a limit the oldest are dropped, with one warning in each pass.

        - ``key_fn``, ``ref_key_fn``: return the key of an item of the parent and of ``ref_datapipe``;
          the same function by default.
        - ``merge_fn``: makes one item of two; a tuple by default.
        - ``keep_key``: whether ``(key, merged)`` is yielded.
        - ``buffer_size``: number of items that are kept; None for all.
        - ``buffer_bytes``: bytes that they may take, with the data of arrays and tensors; the last one
          may take more. None for 1 GiB, or for any number if ``buffer_size`` is None.

        Raises
        ------
        BufferError
            While iterating: no item has the key, or the one that had it was dropped.
        ValueError
            While iterating: two items that are kept have the same key.

        Examples
        --------
        >>> from operator import itemgetter
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> images = IterableWrapper([("a", "a.nii"), ("b", "b.nii")])
        >>> ages = IterableWrapper([("b", 61), ("a", 44)])
        >>> list(images.zip_with_iter(ages, key_fn=itemgetter(0)))
        [(('a', 'a.nii'), ('a', 44)), (('b', 'b.nii'), ('b', 61))]
        """

    def zip_with_map(self, map_datapipe: MapDataPipe[Any], key_fn: Callable[[Any], Hashable], merge_fn: Callable[[Any, Any], Any] | None = None, keep_key: bool = False) -> MapKeyZipper:
        """Yield each item together with the value of a map-style pipe for its key.

        ``key_fn``, ``merge_fn`` and ``keep_key`` are those of :class:`IterKeyZipper`. A key without a
        value is a ``KeyError``.

        Examples
        --------
        >>> from voxpipe.datapipes.iter import IterableWrapper
        >>> from voxpipe.datapipes.map import SequenceWrapper
        >>> ages = SequenceWrapper({"a.nii": 44, "b.nii": 61})
        >>> list(IterableWrapper(["b.nii", "a.nii"]).zip_with_map(ages, key_fn=str))
        [('b.nii', 61), ('a.nii', 44)]
        """

    def zoom(self, factor: Amount, *, axes: int | tuple[int, ...] = (0, 1, 2), by_inverse: bool = False, space: Space = 'world', keep_size: bool = True, p: float = 1.0, name: str = '', mode: Mode | Mapping[str, Mode] | None = None, padding: Padding | Mapping[str, Padding] | None = None, fill: float | Mapping[str, float] | None = None, dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = None, antialias: Antialias | Mapping[str, Antialias] | None = None, lazy: bool | None = None, on_conflict: Literal['error', 'flush'] | None = None) -> SpatialPipe:
        """Enlarge the content by ``factor``, above 1, or shrink it, below."""

    def batch(self, batch_size: int, drop_last: bool=False, wrapper_class: type[DataChunk[Any]]=DataChunk) -> Batcher:
        """Creates mini-batches of data (functional name: ``batch``).

        An outer dimension will be added as ``batch_size`` if ``drop_last`` is set to ``True``, or ``length % batch_size`` for the
        last batch if ``drop_last`` is set to ``False``.

        Args:
            datapipe: Iterable DataPipe being batched
            batch_size: The size of each batch
            drop_last: Option to drop the last batch if it's not full
            wrapper_class: wrapper to apply onto each batch (type ``List``) before yielding,
                defaults to ``DataChunk``

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> dp = IterableWrapper(range(10))
            >>> dp = dp.batch(batch_size=3, drop_last=True)
            >>> list(dp)
            [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        """

    def collate(self, conversion: Callable[..., Any] | dict[str | Any, Callable[..., Any] | Any] | None=default_collate, collate_fn: Callable[..., Any] | None=None) -> Collator:
        """Collates samples from DataPipe to Tensor(s) by a custom collate function (functional name: ``collate``).

        By default, it uses :func:`torch.utils.data.default_collate`.

        .. note::
            While writing a custom collate function, you can import :func:`torch.utils.data.default_collate` for the
            default behavior and `functools.partial` to specify any additional arguments.

        Args:
            datapipe: Iterable DataPipe being collated
            collate_fn: Customized collate function to collect and combine data or a batch of data.
                Default function collates to Tensor(s) based on data type.

        Example:
            >>> # xdoctest: +SKIP
            >>> # Convert integer data to float Tensor
            >>> class MyIterDataPipe(torch.utils.data.IterDataPipe):
            ...     def __init__(self, start, end):
            ...         super(MyIterDataPipe).__init__()
            ...         assert end > start, "this example only works with end >= start"
            ...         self.start = start
            ...         self.end = end
            ...
            ...     def __iter__(self):
            ...         return iter(range(self.start, self.end))
            ...
            ...     def __len__(self):
            ...         return self.end - self.start
            >>> ds = MyIterDataPipe(start=3, end=7)
            >>> print(list(ds))
            [3, 4, 5, 6]
            >>> def collate_fn(batch):
            ...     return torch.tensor(batch, dtype=torch.float)
            >>> collated_ds = CollateIterDataPipe(ds, collate_fn=collate_fn)
            >>> print(list(collated_ds))
            [tensor(3.), tensor(4.), tensor(5.), tensor(6.)]
        """

    def concat(self, *datapipes: IterDataPipe[Any]) -> Concater:
        """Concatenates multiple Iterable DataPipes (functional name: ``concat``).

        The resulting DataPipe will yield all the elements from the first input DataPipe, before yielding from the subsequent ones.

        Args:
            datapipes: Iterable DataPipes being concatenated

        Example:
            >>> # xdoctest: +REQUIRES(module:torchdata)
            >>> import random
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> dp1 = IterableWrapper(range(3))
            >>> dp2 = IterableWrapper(range(5))
            >>> list(dp1.concat(dp2))
            [0, 1, 2, 0, 1, 2, 3, 4]
        """

    def demux(self, num_instances: int, classifier_fn: Callable[[Any], int | None], drop_none: bool=False, buffer_size: int=1000) -> list[ChainedForms]:  # type: ignore[override]
        """Splits the input DataPipe into multiple child DataPipes, using the given classification function (functional name: ``demux``).

        A list of the child DataPipes is returned from this operation.

        Args:
            datapipe: Iterable DataPipe being filtered
            num_instances: number of instances of the DataPipe to create
            classifier_fn: a function that maps values to an integer within the range ``[0, num_instances - 1]`` or ``None``
            drop_none: defaults to ``False``, if ``True``, the function will skip over elements classified as ``None``
            buffer_size: this defines the maximum number of inputs that the buffer can hold across all child
                DataPipes while waiting for their values to be yielded.
                Defaults to ``1000``. Use ``-1`` for the unlimited buffer.

        Examples:
            >>> # xdoctest: +REQUIRES(module:torchdata)
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> def odd_or_even(n):
            ...     return n % 2
            >>> source_dp = IterableWrapper(range(5))
            >>> dp1, dp2 = source_dp.demux(num_instances=2, classifier_fn=odd_or_even)
            >>> list(dp1)
            [0, 2, 4]
            >>> list(dp2)
            [1, 3]
            >>> # It can also filter out any element that gets `None` from the `classifier_fn`
            >>> def odd_or_even_no_zero(n):
            ...     return n % 2 if n != 0 else None
            >>> dp1, dp2 = source_dp.demux(
            ...     num_instances=2, classifier_fn=odd_or_even_no_zero, drop_none=True
            ... )
            >>> list(dp1)
            [2, 4]
            >>> list(dp2)
            [1, 3]
        """

    def filter(self, filter_fn: Callable[..., Any], input_col: Any=None) -> Filter:
        """Filters out elements from the source datapipe according to input ``filter_fn`` (functional name: ``filter``).

        Args:
            datapipe: Iterable DataPipe being filtered
            filter_fn: Customized function mapping an element to a boolean.
            input_col: Index or indices of data which ``filter_fn`` is applied, such as:

                - ``None`` as default to apply ``filter_fn`` to the data directly.
                - Integer(s) is used for list/tuple.
                - Key(s) is used for dict.

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> def is_even(n):
            ...     return n % 2 == 0
            >>> dp = IterableWrapper(range(5))
            >>> filter_dp = dp.filter(filter_fn=is_even)
            >>> list(filter_dp)
            [0, 2, 4]
        """

    def fork(self, num_instances: int, buffer_size: int=1000, copy: Literal['shallow', 'deep'] | None=None) -> list[ChainedForms]:  # type: ignore[override]
        """Creates multiple instances of the same Iterable DataPipe (functional name: ``fork``).

        Args:
            datapipe: Iterable DataPipe being copied
            num_instances: number of instances of the datapipe to create
            buffer_size: this restricts how far ahead the leading child DataPipe
               can read relative to the slowest child DataPipe.
               Defaults to ``1000``. Use ``-1`` for the unlimited buffer.
            copy: copy strategy to use for items yielded by each branch. Supported
                options are ``None`` for no copying, ``"shallow"`` for shallow object
                copies, and ``"deep"`` for deep object copies. Defaults to ``None``.

        Note:
            All branches of the forked pipeline return the identical object unless
            the copy parameter is supplied. If the object is mutable or contains
            mutable objects, changing them in one branch will affect all others.

        Example:
            >>> # xdoctest: +REQUIRES(module:torchdata)
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> source_dp = IterableWrapper(range(5))
            >>> dp1, dp2 = source_dp.fork(num_instances=2)
            >>> list(dp1)
            [0, 1, 2, 3, 4]
            >>> list(dp2)
            [0, 1, 2, 3, 4]
        """

    def groupby(self, group_key_fn: Callable[[Any], Any], *, keep_key: bool=False, buffer_size: int=10000, group_size: int | None=None, guaranteed_group_size: int | None=None, drop_remaining: bool=False) -> Grouper:
        """Groups data from IterDataPipe by keys from ``group_key_fn``, yielding a ``DataChunk`` with batch size up to ``group_size``.

        (functional name: ``groupby``).

        The samples are read sequentially from the source ``datapipe``, and a batch of samples belonging to the same group
        will be yielded as soon as the size of the batch reaches ``group_size``. When the buffer is full,
        the DataPipe will yield the largest batch with the same key, provided that its size is larger
        than ``guaranteed_group_size``. If its size is smaller, it will be dropped if ``drop_remaining=True``.

        After iterating through the entirety of source ``datapipe``, everything not dropped due to the buffer capacity
        will be yielded from the buffer, even if the group sizes are smaller than ``guaranteed_group_size``.

        Args:
            datapipe: Iterable datapipe to be grouped
            group_key_fn: Function used to generate group key from the data of the source datapipe
            keep_key: Option to yield the matching key along with the items in a tuple,
                resulting in `(key, [items])` otherwise returning [items]
            buffer_size: The size of buffer for ungrouped data
            group_size: The max size of each group, a batch is yielded as soon as it reaches this size
            guaranteed_group_size: The guaranteed minimum group size to be yielded in case the buffer is full
            drop_remaining: Specifies if the group smaller than ``guaranteed_group_size`` will be dropped from buffer
                when the buffer is full

        Example:
            >>> import os
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> def group_fn(file):
            ...     return os.path.basename(file).split(".")[0]
            >>> source_dp = IterableWrapper(
            ...     ["a.png", "b.png", "a.json", "b.json", "a.jpg", "c.json"]
            ... )
            >>> dp0 = source_dp.groupby(group_key_fn=group_fn)
            >>> list(dp0)
            [['a.png', 'a.json', 'a.jpg'], ['b.png', 'b.json'], ['c.json']]
            >>> # A group is yielded as soon as its size equals to `group_size`
            >>> dp1 = source_dp.groupby(group_key_fn=group_fn, group_size=2)
            >>> list(dp1)
            [['a.png', 'a.json'], ['b.png', 'b.json'], ['a.jpg'], ['c.json']]
            >>> # Scenario where `buffer` is full, and group 'a' needs to be yielded since its size > `guaranteed_group_size`
            >>> dp2 = source_dp.groupby(
            ...     group_key_fn=group_fn,
            ...     buffer_size=3,
            ...     group_size=3,
            ...     guaranteed_group_size=2,
            ... )
            >>> list(dp2)
            [['a.png', 'a.json'], ['b.png', 'b.json'], ['a.jpg'], ['c.json']]
        """

    def list_files(self, masks: str | list[str]='', *, recursive: bool=False, abspath: bool=False, non_deterministic: bool=False, length: int=-1) -> FileLister:
        """Given path(s) to the root directory, yields file pathname(s) (path + filename) of files within the root directory.

        Multiple root directories can be provided (functional name: ``list_files``).

        Args:
            root: Root directory or a sequence of root directories
            masks: Unix style filter string or string list for filtering file name(s)
            recursive: Whether to return pathname from nested directories or not
            abspath: Whether to return relative pathname or absolute pathname
            non_deterministic: Whether to return pathname in sorted order or not.
                If ``False``, the results yielded from each root directory will be sorted
            length: Nominal length of the datapipe

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import FileLister
            >>> dp = FileLister(root=".", recursive=True)
            >>> list(dp)
            ['example.py', './data/data.tar']
        """

    def map(self, fn: Callable[..., Any], input_col: Any=None, output_col: Any=None) -> Mapper:
        """Applies a function over each item from the source DataPipe (functional name: ``map``).

        The function can be any regular Python function or partial object. Lambda
        function is not recommended as it is not supported by pickle.

        Args:
            datapipe: Source Iterable DataPipe
            fn: Function being applied over each item
            input_col: Index or indices of data which ``fn`` is applied, such as:

                - ``None`` as default to apply ``fn`` to the data directly.
                - Integer(s) is used for list/tuple.
                - Key(s) is used for dict.

            output_col: Index of data where result of ``fn`` is placed. ``output_col`` can be specified
                only when ``input_col`` is not ``None``

                - ``None`` as default to replace the index that ``input_col`` specified; For ``input_col`` with
                  multiple indices, the left-most one is used, and other indices will be removed.
                - Integer is used for list/tuple. ``-1`` represents to append result at the end.
                - Key is used for dict. New key is acceptable.

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import IterableWrapper, Mapper
            >>> def add_one(x):
            ...     return x + 1
            >>> dp = IterableWrapper(range(10))
            >>> # Invocation via functional form is preferred
            ... map_dp_1 = dp.map(add_one)
            >>> list(map_dp_1)
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
            >>> # We discourage the usage of `lambda` functions as they are not serializable with `pickle`
            >>> # Use `functools.partial` or explicitly define the function instead
            >>> map_dp_2 = Mapper(dp, lambda x: x + 1)
            >>> list(map_dp_2)
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
        """

    def mux(self, *datapipes: Any) -> Multiplexer:
        """Yields one element at a time from each of the input Iterable DataPipes (functional name: ``mux``).

        As in, one element from the 1st input DataPipe, then one element from the 2nd DataPipe in the next iteration,
        and so on. It ends when the shortest input DataPipe is exhausted.

        Args:
            datapipes: Iterable DataPipes that will take turn to yield their elements, until the shortest DataPipe is exhausted

        Example:
            >>> # xdoctest: +REQUIRES(module:torchdata)
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> dp1, dp2, dp3 = (
            ...     IterableWrapper(range(3)),
            ...     IterableWrapper(range(10, 15)),
            ...     IterableWrapper(range(20, 25)),
            ... )
            >>> list(dp1.mux(dp2, dp3))
            [0, 10, 20, 1, 11, 21, 2, 12, 22]
        """

    def open_files(self, mode: str='r', encoding: str | None=None, length: int=-1) -> FileOpener:
        """Given pathnames, opens files and yield pathname and file stream in a tuple (functional name: ``open_files``).

        Args:
            datapipe: Iterable datapipe that provides pathnames
            mode: An optional string that specifies the mode in which
                the file is opened by ``open()``. It defaults to ``r``, other options are
                ``b`` for reading in binary mode and ``t`` for text mode.
            encoding: An optional string that specifies the encoding of the
                underlying file. It defaults to ``None`` to match the default encoding of ``open``.
            length: Nominal length of the datapipe

        Note:
            The opened file handles will be closed by Python's GC periodically. Users can choose
            to close them explicitly.

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import (
            ...     FileLister,
            ...     FileOpener,
            ...     StreamReader,
            ... )
            >>> dp = FileLister(root=".").filter(lambda fname: fname.endswith(".txt"))
            >>> dp = FileOpener(dp)
            >>> dp = StreamReader(dp)
            >>> list(dp)
            [('./abc.txt', 'abc')]
        """

    def read_from_stream(self, chunk: int | None=None) -> StreamReader:
        """Given IO streams and their label names, yield bytes with label name as tuple.

        (functional name: ``read_from_stream``).

        Args:
            datapipe: Iterable DataPipe provides label/URL and byte stream
            chunk: Number of bytes to be read from stream per iteration.
                If ``None``, all bytes will be read until the EOF.

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import IterableWrapper, StreamReader
            >>> from io import StringIO
            >>> dp = IterableWrapper([("alphabet", StringIO("abcde"))])
            >>> list(StreamReader(dp, chunk=1))
            [('alphabet', 'a'), ('alphabet', 'b'), ('alphabet', 'c'), ('alphabet', 'd'), ('alphabet', 'e')]
        """

    def routed_decode(self, *handlers: Callable[..., Any], key_fn: Callable[..., Any]=...) -> RoutedDecoder:
        """Decodes binary streams from input DataPipe, yields pathname and decoded data in a tuple.

        (functional name: ``routed_decode``)

        Args:
            datapipe: Iterable datapipe that provides pathname and binary stream in tuples
            handlers: Optional user defined decoder handlers. If ``None``, basic and image decoder
                handlers will be set as default. If multiple handlers are provided, the priority
                order follows the order of handlers (the first handler has the top priority)
            key_fn: Function for decoder to extract key from pathname to dispatch handlers.
                Default is set to extract file extension from pathname

        Note:
            When ``key_fn`` is specified returning anything other than extension, the default
            handler will not work and users need to specify custom handler. Custom handler
            could use regex to determine the eligibility to handle data.
        """

    def sharding_filter(self, sharding_group_filter: Any=None) -> ShardingFilter:
        """Wrapper that allows DataPipe to be sharded (functional name: ``sharding_filter``).

        After ``apply_sharding`` is called, each instance of the DataPipe (on different workers) will have every `n`-th element of the
        original DataPipe, where `n` equals to the number of instances.

        Args:
            source_datapipe: Iterable DataPipe that will be sharded
        """

    def shuffle(self, *, buffer_size: int=10000, unbatch_level: int=0) -> Shuffler:
        """Shuffle the input DataPipe with a buffer (functional name: ``shuffle``).

        The buffer with ``buffer_size`` is filled with elements from the datapipe first. Then,
        each item will be yielded from the buffer by reservoir sampling via iterator.

        ``buffer_size`` is required to be larger than ``0``. For ``buffer_size == 1``, the
        datapipe is not shuffled. In order to fully shuffle all elements from datapipe,
        ``buffer_size`` is required to be greater than or equal to the size of datapipe.

        When it is used with :class:`torch.utils.data.DataLoader`, the methods to
        set up random seed are different based on :attr:`num_workers`.

        For single-process mode (:attr:`num_workers == 0`), the random seed is set before
        the :class:`~torch.utils.data.DataLoader` in the main process. For multi-process
        mode (:attr:`num_worker > 0`), `worker_init_fn` is used to set up a random seed
        for each worker process.

        Args:
            datapipe: The IterDataPipe being shuffled
            buffer_size: The buffer size for shuffling (default to ``10000``)
            unbatch_level: Specifies if it is necessary to unbatch source data before
                applying the shuffle

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> dp = IterableWrapper(range(10))
            >>> shuffle_dp = dp.shuffle()
            >>> list(shuffle_dp)
            [0, 4, 1, 6, 3, 2, 9, 5, 7, 8]
        """

    def unbatch(self, unbatch_level: int=1) -> UnBatcher:
        """Undoes batching of data (functional name: ``unbatch``).

        In other words, it flattens the data up to the specified level within a batched DataPipe.

        Args:
            datapipe: Iterable DataPipe being un-batched
            unbatch_level: Defaults to ``1`` (only flattening the top level). If set to ``2``,
                it will flatten the top two levels, and ``-1`` will flatten the entire DataPipe.

        Example:
            >>> # xdoctest: +SKIP
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> source_dp = IterableWrapper([[[0, 1], [2]], [[3, 4], [5]], [[6]]])
            >>> dp1 = source_dp.unbatch()
            >>> list(dp1)
            [[0, 1], [2], [3, 4], [5], [6]]
            >>> dp2 = source_dp.unbatch(unbatch_level=2)
            >>> list(dp2)
            [0, 1, 2, 3, 4, 5, 6]
        """

    def zip(self, *datapipes: IterDataPipe[Any]) -> Zipper:
        """Aggregates elements into a tuple from each of the input DataPipes (functional name: ``zip``).

        The output is stopped as soon as the shortest input DataPipe is exhausted.

        Args:
            *datapipes: Iterable DataPipes being aggregated

        Example:
            >>> # xdoctest: +REQUIRES(module:torchdata)
            >>> from torchdata.datapipes.iter import IterableWrapper
            >>> dp1, dp2, dp3 = (
            ...     IterableWrapper(range(5)),
            ...     IterableWrapper(range(10, 15)),
            ...     IterableWrapper(range(20, 25)),
            ... )
            >>> list(dp1.zip(dp2, dp3))
            [(0, 10, 20), (1, 11, 21), (2, 12, 22), (3, 13, 23), (4, 14, 24)]
        """

class AffinePipe(SpatialPipe): ...
class AnisotropyPipe(ValuePipe): ...
class BiasFieldPipe(ValuePipe): ...
class BlurPipe(ValuePipe): ...
class BrightnessPipe(ValuePipe): ...
class CenterCropPipe(SpatialPipe): ...
class ClampPipe(ValuePipe): ...
class ContrastPipe(ValuePipe): ...
class CropOrPadPipe(SpatialPipe): ...
class CropPipe(SpatialPipe): ...
class DivisiblePadPipe(SpatialPipe): ...
class DropBoxesPipe(ValuePipe): ...
class DropChannelsPipe(ValuePipe): ...
class DropComponentPipe(ValuePipe): ...
class ElasticPipe(SpatialPipe): ...
class FlipPipe(SpatialPipe): ...
class ForegroundCropPipe(DataDependentPipe): ...
class GammaPipe(ValuePipe): ...
class GridDistortionPipe(SpatialPipe): ...
class LabelCropPipe(DataDependentPipe): ...
class LowResolutionPipe(ValuePipe): ...
class MapValuesPipe(ValuePipe): ...
class MeanOfChannelsPipe(ValuePipe): ...
class NoisePipe(ValuePipe): ...
class NormalizePipe(ValuePipe): ...
class OneHotPipe(ValuePipe): ...
class OrientationPipe(SpatialPipe): ...
class PadPipe(SpatialPipe): ...
class PerChannelPipe(ValuePipe): ...
class RandomCropPipe(SpatialPipe): ...
class RandomMorphologyPipe(ValuePipe): ...
class RegionsPipe(ValuePipe): ...
class RemapLabelsPipe(ValuePipe): ...
class RescalePercentilesPipe(ValuePipe): ...
class RescalePipe(ValuePipe): ...
class ResizePipe(SpatialPipe): ...
class RicianNoisePipe(ValuePipe): ...
class Rotate90Pipe(SpatialPipe): ...
class RotatePipe(SpatialPipe): ...
class SelectChannelsPipe(ValuePipe): ...
class SharpenPipe(ValuePipe): ...
class ShearPipe(SpatialPipe): ...
class SpacingPipe(SpatialPipe): ...
class TranslatePipe(SpatialPipe): ...
class TransposePipe(SpatialPipe): ...
class ZoomPipe(SpatialPipe): ...
class Batcher(ChainedForms, torch.utils.data.datapipes.iter.Batcher): ...
class Collator(ChainedForms, torch.utils.data.datapipes.iter.Collator): ...
class Concater(ChainedForms, torch.utils.data.datapipes.iter.Concater): ...
class Demultiplexer(ChainedForms, torch.utils.data.datapipes.iter.Demultiplexer): ...
class FileLister(ChainedForms, torch.utils.data.datapipes.iter.FileLister): ...
class FileOpener(ChainedForms, torch.utils.data.datapipes.iter.FileOpener): ...
class Filter(ChainedForms, torch.utils.data.datapipes.iter.Filter[Any]): ...
class Forker(ChainedForms, torch.utils.data.datapipes.iter.Forker): ...
class Grouper(ChainedForms, torch.utils.data.datapipes.iter.Grouper): ...
class IterableWrapper(ChainedForms, torch.utils.data.datapipes.iter.IterableWrapper[Any]): ...
class Mapper(ChainedForms, torch.utils.data.datapipes.iter.Mapper[Any]): ...
class Multiplexer(ChainedForms, torch.utils.data.datapipes.iter.Multiplexer): ...
class RoutedDecoder(ChainedForms, torch.utils.data.datapipes.iter.RoutedDecoder): ...
class Sampler(ChainedForms, torch.utils.data.datapipes.iter.Sampler[Any]): ...
class ShardingFilter(ChainedForms, torch.utils.data.datapipes.iter.ShardingFilter): ...
class Shuffler(ChainedForms, torch.utils.data.datapipes.iter.Shuffler[Any]):
    def set_shuffle(self, shuffle: Any = True) -> Self: ...
    def set_seed(self, seed: int) -> Self: ...
class StreamReader(ChainedForms, torch.utils.data.datapipes.iter.StreamReader): ...
class UnBatcher(ChainedForms, torch.utils.data.datapipes.iter.UnBatcher): ...
class Zipper(ChainedForms, torch.utils.data.datapipes.iter.Zipper[Any]): ...

__all__ = ['AffinePipe', 'AnisotropyPipe', 'BiasFieldPipe', 'BlurPipe', 'BrightnessPipe', 'CenterCropPipe', 'ClampPipe', 'ContrastPipe', 'CropOrPadPipe', 'CropPipe', 'DivisiblePadPipe', 'DropBoxesPipe', 'DropChannelsPipe', 'DropComponentPipe', 'ElasticPipe', 'FlipPipe', 'ForegroundCropPipe', 'GammaPipe', 'GridDistortionPipe', 'LabelCropPipe', 'LowResolutionPipe', 'MapValuesPipe', 'MeanOfChannelsPipe', 'NoisePipe', 'NormalizePipe', 'OneHotPipe', 'OrientationPipe', 'PadPipe', 'PerChannelPipe', 'RandomCropPipe', 'RandomMorphologyPipe', 'RegionsPipe', 'RemapLabelsPipe', 'RescalePercentilesPipe', 'RescalePipe', 'ResizePipe', 'RicianNoisePipe', 'Rotate90Pipe', 'RotatePipe', 'SelectChannelsPipe', 'SharpenPipe', 'ShearPipe', 'SpacingPipe', 'TranslatePipe', 'TransposePipe', 'ZoomPipe', 'Batcher', 'Collator', 'Concater', 'Demultiplexer', 'FileLister', 'FileOpener', 'Filter', 'Forker', 'Grouper', 'IterableWrapper', 'Mapper', 'Multiplexer', 'RoutedDecoder', 'Sampler', 'ShardingFilter', 'Shuffler', 'StreamReader', 'UnBatcher', 'Zipper', 'IndexAdder', 'BatchAsyncMapper', 'BucketBatcher', 'ItemCache', 'HashChecker', 'Cycler', 'DataFrameMaker', 'Decompressor', 'Dropper', 'EndOnDiskCacheHolder', 'Enumerator', 'Extractor', 'FlatMapper', 'Flattener', 'FullSync', 'Header', 'InBatchShuffler', 'InMemoryCacheHolder', 'ParagraphAggregator', 'AISFileLister', 'FSSpecFileLister', 'IoPathFileLister', 'S3FileLister', 'AISFileLoader', 'S3FileLoader', 'Bz2FileLoader', 'RarArchiveLoader', 'TarArchiveLoader', 'TFRecordLoader', 'XzFileLoader', 'ZipArchiveLoader', 'ParquetDataFrameLoader', 'BatchMapper', 'MapMONAI', 'MapTorchIO', 'MaxTokenBucketizer', 'MultiplexerLongest', 'OnDiskCacheHolder', 'FSSpecFileOpener', 'IoPathFileOpener', 'CSVParser', 'CSVDictParser', 'JsonParser', 'PinMemory', 'RandomSplitter', 'GDriveReader', 'HttpReader', 'OnlineReader', 'LineReader', 'Repeater', 'RoundRobinDemultiplexer', 'Rows2Columnar', 'FSSpecSaver', 'IoPathSaver', 'Saver', 'LengthSetter', 'ShardExpander', 'ShardingRoundRobinDispatcher', 'ShuffledFlatMapper', 'Slicer', 'ThreadPoolMapper', 'ToDevice', 'IterToMapConverter', 'ToMetaTensor', 'ToSubject', 'UnZipper', 'WebDataset', 'ZipperLongest', 'IterKeyZipper', 'MapKeyZipper', 'CompressionType', 'FromBids', 'FromDicom', 'FromNNUNet', 'FromOme', 'HuggingFaceHubReader', 'MapToIterConverter', 'SampleMultiplexer', 'from_bids', 'from_dicom', 'from_nnunet', 'from_ome']
