"""The chained forms of every pipe, written by tools/write_chained_forms.py."""

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
import os
from typing import Any, Literal, NoReturn, TypeAlias
import numpy
from numpy.typing import ArrayLike, DTypeLike, NDArray
import torch
from torch.utils.data import IterDataPipe, MapDataPipe
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

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""

    def add_index(self, index_name: str = ...) -> IndexAdder:
        """Write the number of each item into it, under the key ``index_name``."""

    def affine(self, matrix: ArrayLike, shape: Sequence[int] | None = ..., *, unit: str = ..., space: Space = ..., p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Move content from ``centre + x`` to ``centre + A x + t``, with ``matrix = [A | t]``."""

    def anisotropy(self, factor: ParameterRange, axes: int | tuple[int, ...] = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Keep every ``factor``-th voxel along one axis, and interpolate linearly in between."""

    def async_map_batches(self, async_fn: Callable[..., Awaitable[Any]], batch_size: int, input_col: int | str | Sequence[int | str] | None = ..., output_col: int | str | None = ..., max_concurrency: int = ..., flatten: bool = ..., *, buffer_bytes: int | None = ...) -> BatchAsyncMapper:
        """Apply a coroutine function to the items of a group concurrently; their order is kept."""

    def augment(self, *, rotate: Amount = ..., zoom: Amount = ..., translate: Amount = ..., shear: Amount = ..., flip: float | Sequence[float] = ..., p: float = ..., space: Space = ..., unit: str = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Rotate, zoom, translate, shear and flip, as the ops of these names do in this order."""

    def batch_patches(self, batch_size: int, *, drop_last: bool = ...) -> BatchPatches:
        """Stack samples into ``{"image": (B, C, I, J, K), ..., "meta": [provenance, ...]}``."""

    def bias_field(self, strength: ParameterRange = ..., order: int = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Multiply by ``exp`` of a polynomial of the place in the volume."""

    def blur(self, sigma: ParameterRange, unit: str = ..., *, per_axis: bool = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """A Gaussian filter on the chain's result so far, which later spatial ops interpolate."""

    def brightness(self, factor: ParameterRange = ..., add: ParameterRange = ..., *, two_sided: bool = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """``value * factor + add``, the same for all voxels."""

    def bucketbatch(self, batch_size: int, drop_last: bool = ..., batch_num: int = ..., bucket_num: int = ..., sort_key: Callable[[list[Any]], list[Any]] | None = ..., use_in_batch_shuffle: bool = ...) -> Any:
        """Shuffle within pools, sort within buckets, and batch; the result is a chain of small pipes."""

    def cache(self, place: str | os.PathLike[str] | None = ..., *, memory_bytes: int | None = ..., keys: Collection[str] | None = ..., chunk: int | None = ..., codec: str = ..., storage_options: Mapping[str, Any] | None = ...) -> Cache:
        """Make the volumes of a chain once, keep them, and read patches from the kept volumes."""

    def cache_items(self, store: str | os.PathLike[str] | None = ..., *, version: str | int = ..., key_fn: Callable[[Any], Any] | None = ..., ttl: float = ..., store_bytes: int | None = ..., timeout: float = ..., on_error: str = ..., storage_options: Mapping[str, Any] | None = ...) -> ItemCache:
        """Keep the results of the pipes before it in a store that processes and machines share."""

    def center_crop(self, size: int | Sequence[int | None] | None = ..., side: CropSide = ..., *, scale: float | Sequence[float] | None = ..., hard: bool = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Keep a box about the centre; ``side`` decides where an odd voxel is cut off."""

    def check_hash(self, hash_dict: Mapping[str, str], hash_type: str = ..., rewind: bool = ...) -> HashChecker:
        """Pass ``(name, data)`` on if the data have the hash that the name must have."""

    def clamp(self, low: float | None = ..., high: float | None = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Values below ``low`` become ``low``, those above ``high`` become ``high``."""

    def contrast(self, factor: ParameterRange, middle: float | None = ..., keep_range: bool = ..., *, two_sided: bool = ..., statistics_over: str = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """``(value - middle) * factor + middle``."""

    def crop(self, start: Sequence[int] | None = ..., size: int | Sequence[int | None] | None = ..., *, end: Sequence[int] | None = ..., center: Sequence[int] | None = ..., slices: Sequence[slice] | None = ..., hard: bool = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Keep the voxels ``start <= index < end`` of the present grid."""

    def crop_or_pad(self, size: int | Sequence[int | None] | None, side: CropSide = ..., *, hard: bool = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Cut or add voxels on each axis to reach ``size``; ``side`` decides about odd ones."""

    def cycle(self, count: int | None = ...) -> Cycler:
        """Yield all items of the parent ``count`` times; None for ever."""

    def dataframe(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def decompress(self, file_type: str | CompressionType | None = ..., *, most_bytes: int = ...) -> Decompressor:
        """Yield ``(path, decoded stream)`` for each ``(path, compressed stream)``."""

    def deep_supervision(self, scales: Sequence[float | Sequence[float]], keys: str | Sequence[str] = ...) -> DeepSupervision:
        """Put a list of labels at several scales in the place of the labels of a batch."""

    def divisible_pad(self, k: Size, side: Side = ..., *, sides: Sides = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Add voxels until each axis has a multiple of ``k``."""

    def drop(self, indices: Hashable | list[Hashable]) -> Dropper:
        """Leave out columns of tuples and lists, or keys of mappings."""

    def drop_boxes(self, size: ParameterRange, fraction: ParameterRange, fill: float = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Fill boxes with one value, strewn evenly over the lattice of the result."""

    def drop_channels(self, p_channel: float, fill: float = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Fill whole channels with one value; at least one stays."""

    def drop_component(self, max_fraction: float = ..., *, p_channel: float = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Take one connected part out of each channel's mask, of those that are not too large."""

    def elastic(self, amount: Amount, spacing: float | Sequence[float] = ..., locked_layers: int = ..., *, unit: str = ..., space: Space = ..., p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Move control points at random and all voxels smoothly with them."""

    def end_caching(self, mode: str = ..., filepath_fn: Callable[[Any], Any] | None = ..., *, same_filepath_fn: bool = ..., skip_read: bool = ..., timeout: float = ...) -> EndOnDiskCacheHolder:
        """End the part of ``on_disk_cache()``: write ``(name, data)`` to files, and yield their paths."""

    def enumerate(self, starting_index: int = ...) -> Enumerator:
        """Yield ``(index, item)``, with indices from ``starting_index`` on."""

    def extract(self, file_type: str | CompressionType | None = ..., *, most_bytes: int = ...) -> Extractor:
        """The older name of :class:`Decompressor`."""

    def fill_outside(self, keys: str | Sequence[str], *, mask: str, outside: int = ..., fill: float = ..., channels: Sequence[int] | None = ..., keep_mask: bool = ...) -> FillOutsidePipe:
        """Fill volumes of a batch outside of its mask."""

    def flatmap(self, fn: Callable[..., Iterable[Any]] | None = ..., input_col: int | str | Sequence[int | str] | None = ...) -> FlatMapper:
        """Apply a function to each item, and yield the items that it returns."""

    def flatten(self, indices: Hashable | list[Hashable] | None = ...) -> Flattener:
        """Unpack tuples and lists in tuples and lists, or mappings in mappings, by one level."""

    def flip(self, axes: Axis | Sequence[Axis] = ..., *, p: float | Sequence[float] = ..., exactly_one: bool = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Reverse the order of the voxels along ``axes``, each on its own with its probability."""

    def flush(self, keys: Collection[str] | None = ...) -> Flush:
        """End the fused plan here: later spatial pipes interpolate the result of this one."""

    def foreground_crop(self, key: str = ..., above: float | str | None = ..., classes: int | Collection[int] | None = ..., margin: int | Sequence[int] = ..., level: int = ..., *, divisible: int | Sequence[int] = ..., overhang: bool = ..., fallback: Otherwise = ..., hard: bool = ..., select_fn: Callable[[Any], Any] | None = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> DataDependentPipe:
        """Keep the smallest box of the present grid with all voxels of interest, and a margin."""

    def fullsync(self, timeout: float = ...) -> FullSync:
        """Yield items as long as every rank of ``torch.distributed`` has one."""

    def gamma(self, gamma: ParameterRange, in_range: tuple[float, float] | None = ..., *, two_sided: bool = ..., statistics_over: str = ..., keep_statistics: bool = ..., invert: bool = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """``low + (high - low) * ((value - low) / (high - low)) ** gamma``; the ends stay."""

    def grid_distortion(self, limit: float | tuple[float, float] = ..., cells: int | Sequence[int] = ..., factors: Sequence[Sequence[float]] | None = ..., *, p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Stretch or squeeze each cell of a coarse grid along each axis, by a factor of its own."""

    def header(self, limit: int | None = ...) -> Header:
        """Yield the first ``limit`` items of the parent; None for all. No further item is read."""

    def in_batch_shuffle(self) -> InBatchShuffler:
        """Yield each batch, a list, with its items in a drawn order."""

    def in_memory_cache(self, size: float | None = ...) -> InMemoryCacheHolder:
        """Keep the last items of the first pass in memory, and yield them from there in later ones."""

    def interleave(self, visits: int, patches_per_turn: int = ...) -> Interleave:
        """Let the patches of several visits to volumes take turns, some of each at a time."""

    def label_crop(self, size: int | Sequence[int | None] | None, key: str = ..., classes: int | Collection[int] | None = ..., level: int = ..., *, fallback: Otherwise = ..., hard: bool = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> DataDependentPipe:
        """Keep a box of ``size`` about the middle of the box of labels."""

    def lazy_patch(self, size: Size, *, samples_per_volume: int | str | Callable[[Sample], int] = ..., sampling: str = ..., overlap: Size = ..., region: Size | None = ..., align: Size | None = ..., mask: str | Volume | None = ..., min_fraction: float = ..., class_weights: Mapping[Any, float] | None = ..., oversample: float | None = ..., select_fn: Callable[[NDArray[Any]], Any] | None = ..., level: int = ..., weights: str | Volume | None = ..., fallback: str = ..., allow_smaller: bool = ..., name: str = ...) -> PatchSampler:
        """Yield patches of each volume: descriptions of where to cut, no voxels."""

    def lines_to_paragraphs(self, joiner: Callable[[list[Any]], Any] = ...) -> ParagraphAggregator:
        """Yield ``(path, paragraph)``: lines of one file up to an empty one, joined."""

    def list_files_by_ais(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def list_files_by_fsspec(self, masks: str | list[str] = ..., **options: Any) -> FSSpecFileLister:
        """Yield the path or URL of everything directly in a folder, sorted."""

    def list_files_by_iopath(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def list_files_by_s3(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_files_by_ais(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_files_by_s3(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_from_bz2(self, length: int = ..., *, most_bytes: int = ...) -> Bz2FileLoader:
        """Yield ``(path without .bz2, stream)`` for each ``(path, bzip2 stream)``."""

    def load_from_rar(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_from_tar(self, mode: str = ..., length: int = ..., *, most_bytes: int | None = ...) -> TarArchiveLoader:
        """Yield ``(path of the member, stream)`` for each file in each tar archive."""

    def load_from_tfrecord(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def load_from_xz(self, length: int = ..., *, most_bytes: int = ...) -> XzFileLoader:
        """Yield ``(path without .xz, stream)`` for each ``(path, xz or lzma stream)``."""

    def load_from_zip(self, length: int = ..., *, most_bytes: int | None = ...) -> ZipArchiveLoader:
        """Yield ``(path of the member, stream)`` for each file in each zip archive."""

    def load_parquet_as_df(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def low_resolution(self, factor: ParameterRange, *, axes: int | tuple[int, ...] = ..., by_inverse: bool = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Keep every ``factor``-th voxel along all axes, and interpolate linearly in between."""

    def map_batches(self, fn: Callable[[list[Any]], Iterable[Any]], batch_size: int, input_col: int | str | Sequence[int | str] | None = ...) -> BatchMapper:
        """Gather items, apply a function to each group, and yield the items that it returns."""

    def map_monai(self, transform: Callable[[Any], Any], *, lazy: bool = ..., name: str = ...) -> MapMONAI:
        """Run a dictionary transform of MONAI on each sample, as pipes where it has an equal here."""

    def map_torchio(self, transform: Callable[[Any], Any], *, name: str = ...) -> MapTorchIO:
        """Run a transform of TorchIO on the voxels of each sample."""

    def map_values(self, function: Callable[[NDArray[numpy.float32]], NDArray[Any]], commutes: bool = ..., *, keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Apply a function to every patch: float32 (C, I, J, K) in, the same shape out."""

    def max_token_bucketize(self, max_token_count: int, len_fn: Callable[[Any], int] = ..., min_len: int = ..., max_len: int | None = ..., buffer_size: int = ..., include_padding: bool = ...) -> MaxTokenBucketizer:
        """Gather items of similar length into batches whose lengths add up to a limit at most."""

    def mean_of_channels(self, *, keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """The mean of all channels, as one."""

    def move_boxes(self, keys: str | Collection[str] = ..., *, key: str | None = ..., min_fraction: float = ..., row_keys: str | Collection[str] = ...) -> MoveBoxes:
        """Bring boxes from the voxels of the stored volume to those of the patch."""

    def move_points(self, keys: str | Collection[str] = ..., *, key: str | None = ..., inside: bool = ..., row_keys: str | Collection[str] = ...) -> MovePoints:
        """Bring points from the voxels of the stored volume to those of the patch."""

    def mux_longest(self, *datapipes: Pipe) -> MultiplexerLongest:
        """Yield one item of each pipe in turn, until all are exhausted."""

    def noise(self, std: ParameterRange, mean: ParameterRange = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Add normal numbers, independent from voxel to voxel of the result."""

    def normalize(self, mean: float | None = ..., std: float | None = ..., above: float | None = ..., inside: str | None = ..., *, keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Shift and scale the values; by default to mean 0 and deviation 1 over the whole volume."""

    def on_disk_cache(self, filepath_fn: Callable[[Any], Any] | None = ..., hash_dict: Mapping[str, str] | None = ..., hash_type: str = ..., extra_check_fn: Callable[[str], bool] | None = ...) -> OnDiskCacheHolder:
        """Begin a part of the chain whose results are kept on the local disk."""

    def one_hot(self, classes: int | tuple[int, ...], *, unknown: Literal['error', 'drop'] = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """A channel for every class, 1 where it is and 0 elsewhere, uint8."""

    def one_of(self, ops: Sequence[Any] | Mapping[Any, float], *, weights: Sequence[float] | None = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> ChoicePipe:
        """Choose one of several ops, or chains of ops, by weight."""

    def open_files_by_fsspec(self, mode: str = ..., *, kwargs_for_open: Mapping[str, Any] | None = ..., **options: Any) -> FSSpecFileOpener:
        """Yield ``(path, stream)`` for each path or URL."""

    def open_files_by_iopath(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def open_volume(self, *, labels: Collection[str] = ..., keys: Collection[str] | None = ..., policies: Mapping[str, Policy | Mapping[str, Any]] | None = ..., override: bool = ..., axis_map: AxisMap | Mapping[str, AxisMap] | None = ..., storage_options: Mapping[str, Any] | None = ..., io: str | Mapping[str, str] = ..., **reader_kwargs: Any) -> OpenVolume:
        """Make a lazy volume of every path, URL, array or store in a sample."""

    def orientation(self, axcodes: str = ..., *, name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Swap and mirror the axes so that each points most nearly to its letter."""

    def pad(self, amount: int | Sequence[int | tuple[int, int]] | None = ..., size: Size | None = ..., side: Side = ..., *, sides: Sides = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Add voxels before and after on each axis: a number of voxels, or up to a size."""

    def parse_csv(self, *, skip_lines: int = ..., decode: bool = ..., encoding: str = ..., errors: str = ..., return_path: bool = ..., as_tuple: bool = ..., **fmtparams: Any) -> CSVParser:
        """Yield each row of each CSV file as a list of texts; files are closed."""

    def parse_csv_as_dict(self, skip_lines: int = ..., decode: bool = ..., encoding: str = ..., errors: str = ..., return_path: bool = ..., **fmtparams: Any) -> CSVDictParser:
        """Yield each row of each CSV file as a dict by the names in its first row; files are closed."""

    def parse_json_files(self, **kwargs: Any) -> JsonParser:
        """Yield ``(path, contents)`` for each ``(path, stream)`` of JSON; files are closed."""

    def per_channel(self, op: ValueOp, *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Apply an op to each channel on its own: its ``p`` and its amounts are drawn for each."""

    def pin_memory(self, device: str | int | torch.device = ..., pin_memory_fn: Callable[..., Any] = ..., *, buffer_bytes: int = ...) -> PinMemory:
        """Copy the tensors of each item into page-locked memory, in a thread, two items ahead."""

    def prefetch(self, buffer_size: int = ..., *, buffer_bytes: int = ...) -> Prefetcher:
        """Make items in a thread before they are asked for; nothing else changes."""

    def random_apply(self, ops: Sequence[Any] | Mapping[Any, float], *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> ChoicePipe:
        """Apply all of ``ops`` in turn, or none of them, with probability ``p``."""

    def random_crop(self, size: int | Sequence[int | tuple[int, int]] | None = ..., *, scale: float | Sequence[float | tuple[float, float]] | None = ..., center: bool = ..., hard: bool = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Keep a box whose size or place is drawn; every place where it fits is as likely."""

    def random_morphology(self, radius: ParameterRange = ..., operators: tuple[str, ...] = ..., *, p_channel: float = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Grow, shrink, close or open each channel's mask by a ball; growth takes from others."""

    def random_order(self, ops: Sequence[Any] | Mapping[Any, float], *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> ChoicePipe:
        """Apply all of ``ops``, in an order that is drawn per item."""

    def random_split(self, weights: Mapping[Any, float], seed: int, total_length: int | None = ..., target: Any = ...) -> Any:
        """Return a list of pipes among which the parent's items are divided at random."""

    def read_from_gdrive(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def read_from_http(self, timeout: float | None = ..., skip_on_error: bool = ..., *, max_concurrency: int = ..., buffer_bytes: int = ..., **options: Any) -> HttpReader:
        """Yield ``(URL, stream of bytes)`` for each URL of a web server."""

    def read_from_remote(self, timeout: float | None = ..., skip_on_error: bool = ..., *, max_concurrency: int = ..., buffer_bytes: int = ..., **options: Any) -> OnlineReader:
        """Yield ``(URL, stream of bytes)`` for each URL of a web server, as ``read_from_http``."""

    def readlines(self, *, skip_lines: int = ..., strip_newline: bool = ..., decode: bool = ..., encoding: str = ..., errors: str = ..., return_path: bool = ...) -> LineReader:
        """Yield ``(path, line)`` for each line of each ``(path, stream)``; files are closed."""

    def realize(self) -> Realize:
        """Read and resample every lazy patch of a sample; the rest passes through."""

    def regions(self, classes: tuple[int | tuple[int, ...], ...], *, keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """A channel for every region, 1 where one of its labels is and 0 elsewhere, uint8."""

    def remap_labels(self, mapping: Mapping[int, int], *, unknown: int | None = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Give labels other numbers; several may become one."""

    def repeat(self, times: int) -> Repeater:
        """Yield each item of the parent ``times`` times (at least 2), one after the other."""

    def replay(self, draws: Mapping[str, Any]) -> Replay:
        """Apply the draws of a record to every sample, in place of new draws."""

    def resample_to(self, grid: Grid | str, *, keys: str | Collection[str] | None = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Resample volumes to one grid: each voxel then has the value at its place in the world."""

    def rescale(self, out_range: tuple[float, float] = ..., in_range: tuple[float, float] | None = ..., clamp: bool = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Bring the range of the volume, or a given one, to ``out_range``."""

    def rescale_percentiles(self, lower: float = ..., upper: float = ..., out_range: tuple[float, float] = ..., clamp: bool = ..., above: float | None = ..., inside: str | None = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Map two percentiles of the volume to ``out_range``, and clamp values beyond."""

    def resize(self, size: int | Sequence[int | None] | None, *, longest: bool = ..., extent: Extent = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Give the grid ``size`` voxels over the present extent."""

    def rician_noise(self, std: ParameterRange, *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """The noise of magnitude images: normal noise in both parts of a complex number."""

    def rotate(self, degrees: Amount, method: Literal['forward', 'backward'] = ..., *, space: Space = ..., keep_size: bool = ..., p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Turn by ``Rz @ Ry @ Rx``: about x first, then y, then z."""

    def rotate90(self, k: int | Sequence[int] = ..., axes: Sequence[Axis] = ..., *, p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Turn by ``k`` quarter turns from the first axis towards the second, as ``numpy.rot90``."""

    def round_robin_demux(self, num_instances: int, buffer_size: int = ..., *, buffer_bytes: int | None = ...) -> list[Any]:
        """Return a list of ``num_instances`` pipes among which the items are dealt out in turn."""

    def rows2columnar(self, column_names: Collection[str] | None = ...) -> Rows2Columnar:
        """Make a mapping from column to values of each batch, a list of rows."""

    def save_by_fsspec(self, mode: str = ..., filepath_fn: Callable[[Any], Any] | None = ..., *, kwargs_for_open: Mapping[str, Any] | None = ..., **options: Any) -> FSSpecSaver:
        """Write the data of each ``(name, data)`` to a path or URL, and yield that."""

    def save_by_iopath(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    def save_to_disk(self, mode: str = ..., filepath_fn: Callable[[Any], Any] | None = ...) -> Saver:
        """Write the data of each ``(name, data)`` to a file and yield its path."""

    def select_channels(self, indices: int | tuple[int, ...], *, keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """Keep some channels, in the order given."""

    def set_length(self, length: int) -> LengthSetter:
        """Set the length of a parent without a known one: after ``filter``, for instance."""

    def shard_expand(self) -> ShardExpander:
        """Yield the names of shards that patterns like ``"ct-{000..127}.tar"`` stand for."""

    def sharding_round_robin_dispatch(self, sharding_group_filter: SHARDING_PRIORITIES | None = ...) -> ShardingRoundRobinDispatcher:
        """Mark that everything above runs in one process, which deals its items out to the workers."""

    def sharpen(self, sigma: ParameterRange, unit: str = ..., amount: ParameterRange = ..., *, p: float = ..., keys: str | Collection[str] | None = ..., name: str = ...) -> ValuePipe:
        """``value + amount * (value - blurred)``, an unsharp mask."""

    def shear(self, factor: Amount, *, space: Space = ..., p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Slide by the factors (xy, xz, yz); volumes keep their size, the grid its shape."""

    def shuffle_plans(self, spec: ShuffleSpec | None = ...) -> ShufflePlans:
        """Shuffle patches before anything is read: descriptions change places."""

    def shuffled_flatmap(self, fn: Callable[..., Iterable[Any]] | None = ..., input_col: int | str | Sequence[int | str] | None = ..., buffer_size: int = ...) -> ShuffledFlatMapper:
        """Apply a function to each item, and yield the results of several items mixed."""

    def slice(self, index: Hashable | list[Hashable], stop: int | None = ..., step: int | None = ...) -> Slicer:
        """Keep columns of tuples and lists, or keys of mappings."""

    def some_of(self, ops: Sequence[Any] | Mapping[Any, float], count: int | tuple[int, int], *, weights: Sequence[float] | None = ..., p: float = ..., keys: str | Collection[str] | None = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> ChoicePipe:
        """Choose ``count`` different ops, which act in the order given."""

    def spacing(self, spacing: float | Sequence[float | tuple[float, float] | None], *, unit: str = ..., extent: Extent = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Bring neighbouring voxels to a distance in millimetres along the axes of the array."""

    def stack(self, keys: Sequence[str], name: str = ...) -> Stack:
        """Make several volumes the channels of one, in one slot of the batch."""

    def stitch(self, key: str, destination: str | os.PathLike[str] | None = ..., *, blend: str = ..., sigma_scale: float | Sequence[float] | None = ..., output: str = ..., dtype: DTypeLike | None = ..., like: str | None = ..., run: str = ..., memory_bytes: int = ..., overwrite: bool = ..., storage_options: Mapping[str, Any] | None = ...) -> Stitch:
        """Blend a model's outputs for windows; yield the volumes that each batch has finished."""

    def threadpool_map(self, fn: Callable[..., Any], input_col: int | str | Sequence[int | str] | None = ..., output_col: int | str | None = ..., scheduled_tasks: int = ..., max_workers: int | None = ..., *, buffer_bytes: int = ..., **threadpool_kwargs: Any) -> ThreadPoolMapper:
        """Apply a function to each item in a pool of threads; the order of the items is kept."""

    def to_device(self, device: str | int | torch.device, *, non_blocking: bool = ...) -> ToDevice:
        """Move every tensor of an item to a device; other values stay."""

    def to_map_datapipe(self, key_value_fn: Callable[[Any], tuple[Hashable, Any]] | None = ...) -> IterToMapConverter:
        """Hold the items of a pipe by key; they are loaded at the first access."""

    def to_metatensor(self) -> ToMetaTensor:
        """Make MONAI's ``MetaTensor`` of each volume of a batch, or of a realized sample."""

    def to_subject(self, labels: str | Collection[str] | None = ...) -> ToSubject:
        """Make TorchIO's ``Subject`` of each sample, or a list of them of each batch."""

    def translate(self, amount: Amount, *, unit: str = ..., space: Space = ..., p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Move the content by ``amount``: millimetres in world space, voxels in voxel space."""

    def transpose(self, axes: Sequence[Axis] = ..., *, name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Put the axes of the array in another order, as ``numpy.transpose``; the affine follows."""

    def unstack(self, key: str, names: Sequence[str]) -> Unstack:
        """Make each channel of a volume a volume of its own."""

    def unzip(self, sequence_length: int, buffer_size: int = ..., columns_to_skip: Sequence[int] | None = ..., *, buffer_bytes: int | None = ...) -> list[Branch]:
        """Return a list of pipes, one per column of the parent's sequences."""

    def webdataset(self, *, decode: bool = ...) -> WebDataset:
        """Yield ``{"__key__": name, ".jpg": data, ".cls": data, ...}`` of adjacent members."""

    def zip_longest(self, *datapipes: Pipe, fill_value: Any = ...) -> ZipperLongest:
        """Yield tuples of one item of each pipe, until all are exhausted."""

    def zip_with_iter(self, ref_datapipe: IterDataPipe[Any], key_fn: Callable[[Any], Hashable], ref_key_fn: Callable[[Any], Hashable] | None = ..., keep_key: bool = ..., buffer_size: int | None = ..., merge_fn: Callable[[Any, Any], Any] | None = ..., *, buffer_bytes: int | None = ...) -> IterKeyZipper:
        """Yield each item together with the item of another pipe that has the same key."""

    def zip_with_map(self, map_datapipe: MapDataPipe[Any], key_fn: Callable[[Any], Hashable], merge_fn: Callable[[Any, Any], Any] | None = ..., keep_key: bool = ...) -> MapKeyZipper:
        """Yield each item together with the value of a map-style pipe for its key."""

    def zoom(self, factor: Amount, *, axes: int | tuple[int, ...] = ..., by_inverse: bool = ..., space: Space = ..., keep_size: bool = ..., p: float = ..., name: str = ..., mode: Mode | Mapping[str, Mode] | None = ..., padding: Padding | Mapping[str, Padding] | None = ..., fill: float | Mapping[str, float] | None = ..., dtype: DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None = ..., antialias: Antialias | Mapping[str, Antialias] | None = ..., lazy: bool | None = ..., on_conflict: Literal['error', 'flush'] | None = ...) -> SpatialPipe:
        """Enlarge the content by ``factor``, above 1, or shrink it, below."""

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

__all__ = ['AffinePipe', 'AnisotropyPipe', 'BiasFieldPipe', 'BlurPipe', 'BrightnessPipe', 'CenterCropPipe', 'ClampPipe', 'ContrastPipe', 'CropOrPadPipe', 'CropPipe', 'DivisiblePadPipe', 'DropBoxesPipe', 'DropChannelsPipe', 'DropComponentPipe', 'ElasticPipe', 'FlipPipe', 'ForegroundCropPipe', 'GammaPipe', 'GridDistortionPipe', 'LabelCropPipe', 'LowResolutionPipe', 'MapValuesPipe', 'MeanOfChannelsPipe', 'NoisePipe', 'NormalizePipe', 'OneHotPipe', 'OrientationPipe', 'PadPipe', 'PerChannelPipe', 'RandomCropPipe', 'RandomMorphologyPipe', 'RegionsPipe', 'RemapLabelsPipe', 'RescalePercentilesPipe', 'RescalePipe', 'ResizePipe', 'RicianNoisePipe', 'Rotate90Pipe', 'RotatePipe', 'SelectChannelsPipe', 'SharpenPipe', 'ShearPipe', 'SpacingPipe', 'TranslatePipe', 'TransposePipe', 'ZoomPipe', 'IndexAdder', 'BatchAsyncMapper', 'BucketBatcher', 'ItemCache', 'HashChecker', 'Cycler', 'DataFrameMaker', 'Decompressor', 'Dropper', 'EndOnDiskCacheHolder', 'Enumerator', 'Extractor', 'FlatMapper', 'Flattener', 'FullSync', 'Header', 'InBatchShuffler', 'InMemoryCacheHolder', 'ParagraphAggregator', 'AISFileLister', 'FSSpecFileLister', 'IoPathFileLister', 'S3FileLister', 'AISFileLoader', 'S3FileLoader', 'Bz2FileLoader', 'RarArchiveLoader', 'TarArchiveLoader', 'TFRecordLoader', 'XzFileLoader', 'ZipArchiveLoader', 'ParquetDataFrameLoader', 'BatchMapper', 'MapMONAI', 'MapTorchIO', 'MaxTokenBucketizer', 'MultiplexerLongest', 'OnDiskCacheHolder', 'FSSpecFileOpener', 'IoPathFileOpener', 'CSVParser', 'CSVDictParser', 'JsonParser', 'PinMemory', 'RandomSplitter', 'GDriveReader', 'HttpReader', 'OnlineReader', 'LineReader', 'Repeater', 'RoundRobinDemultiplexer', 'Rows2Columnar', 'FSSpecSaver', 'IoPathSaver', 'Saver', 'LengthSetter', 'ShardExpander', 'ShardingRoundRobinDispatcher', 'ShuffledFlatMapper', 'Slicer', 'ThreadPoolMapper', 'ToDevice', 'IterToMapConverter', 'ToMetaTensor', 'ToSubject', 'UnZipper', 'WebDataset', 'ZipperLongest', 'IterKeyZipper', 'MapKeyZipper', 'CompressionType', 'FromBids', 'FromDicom', 'FromNNUNet', 'FromOme', 'HuggingFaceHubReader', 'MapToIterConverter', 'SampleMultiplexer', 'from_bids', 'from_dicom', 'from_nnunet', 'from_ome']
