use super::checksum::checksum_of_sums;
use super::table::VERSION;
use super::*;
use crate::pack::Arena;
use crate::simd::tests::random_weights;
use proptest::prelude::*;

const IDENTITY: [u8; 32] = [7; 32];
const SHAPE: [usize; 2] = [11, 256];
const NAMES: [(&str, Format); 3] = [("a", Format::Q4_0), ("b", Format::Q6_K), ("c", Format::Q8_0)];

fn pool() -> Pool {
    Pool::new(Some(1)).unwrap()
}

fn pack(format: Format) -> Arc<Packed> {
    let rows = random_weights(format, SHAPE[0], SHAPE[1], 3);
    Arc::new(
        Packed::new(
            &crate::simd::scalar::KERNELS,
            &mut pool(),
            &mut Arena::default(),
            format,
            Layout::of(format).unwrap(),
            SHAPE,
            &rows,
        )
        .unwrap(),
    )
}

fn saved(folder: &Path) -> std::path::PathBuf {
    let cache = PackCache::empty(IDENTITY);
    for (name, format) in NAMES {
        cache.add(name, format, SHAPE, &pack(format));
    }
    assert!(cache.is_stale());
    let path = folder.join("model.smelt-packed");
    cache.save(&path).unwrap();
    assert!(!cache.is_stale());
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "no temporary file is left");
    path
}

/// Bytes of a file, in memory that begins where a map could.
fn aligned(bytes: &[u8]) -> Bytes {
    let mut copy = vec![0; bytes.len() + ALIGN];
    let start = copy.as_ptr().addr().next_multiple_of(ALIGN) - copy.as_ptr().addr();
    copy[start..start + bytes.len()].copy_from_slice(bytes);
    Bytes::from(copy).slice(start..start + bytes.len())
}

/// What a file gives for each weight: exactly what was packed, or nothing.
fn taken(bytes: Bytes) -> Result<(usize, Option<PackCacheError>), PackCacheError> {
    let entries = validate(&bytes, IDENTITY)?;
    let cache = PackCache { file: Some((bytes, entries)), ..PackCache::empty(IDENTITY) };
    let mut found = 0;
    for (name, format) in NAMES {
        if let Some(packed) = cache.take(&mut pool(), name, format, SHAPE) {
            assert_eq!(packed.all(), pack(format).all(), "{name}");
            found += 1;
        }
    }
    Ok((found, cache.damage()))
}

#[test]
fn what_was_saved_is_found_again_for_the_same_shape_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path());
    let cache = PackCache::open(&path, IDENTITY).unwrap();
    for (name, format) in NAMES {
        let packed = cache.take(&mut pool(), name, format, SHAPE).unwrap();
        assert_eq!(packed.all(), pack(format).all(), "{name}");
        assert_eq!(packed.view().group(1), pack(format).view().group(1), "{name}");
        assert!(cache.take(&mut pool(), name, format, [SHAPE[0] + 1, SHAPE[1]]).is_none());
    }
    assert!(cache.take(&mut pool(), "d", Format::Q4_0, SHAPE).is_none());
    assert!(!cache.is_stale() && cache.damage().is_none());
    // What is in use is written anew with what was missing.
    cache.add("d", Format::Q4_1, SHAPE, &pack(Format::Q4_1));
    assert!(cache.is_stale());
    cache.save(&path).unwrap();
    let cache = PackCache::open(&path, IDENTITY).unwrap();
    assert!(cache.take(&mut pool(), "d", Format::Q4_1, SHAPE).is_some());
}

#[test]
fn what_an_ended_writer_left_is_removed_and_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, old: bool| {
        let file = File::create(folder.path().join(name)).unwrap();
        if old {
            file.set_modified(std::time::SystemTime::now() - 2 * Temporary::ABANDONED).unwrap();
        }
        file
    };
    drop(file(".model.smelt-packed.1-0.tmp", true));
    let writing = file(".model.smelt-packed.2-0.tmp", true);
    writing.try_lock().unwrap();
    for (name, old) in
        [(".model.smelt-packed.3-0.tmp", false), (".other.smelt-packed.1-0.tmp", true), ("model", true)]
    {
        drop(file(name, old));
    }
    let path = folder.path().join("model.smelt-packed");
    PackCache::empty(IDENTITY).save(&path).unwrap();
    let mut left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    let expected = [
        ".model.smelt-packed.2-0.tmp",
        ".model.smelt-packed.3-0.tmp",
        ".other.smelt-packed.1-0.tmp",
        "model",
        "model.smelt-packed",
    ];
    assert_eq!(left, expected);
}

#[test]
fn what_could_not_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // A folder in the file's place: everything is written, and then cannot be renamed.
    let path = folder.path().join("model.smelt-packed");
    std::fs::create_dir(&path).unwrap();
    let cache = PackCache::empty(IDENTITY);
    cache.add("a", Format::Q4_0, SHAPE, &pack(Format::Q4_0));
    assert!(matches!(cache.save(&path), Err(PackCacheError::Io(_))));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    // Nothing was forgotten: once there is room, the same is written.
    assert!(cache.is_stale());
    std::fs::remove_dir(&path).unwrap();
    cache.save(&path).unwrap();
    let found = PackCache::open(&path, IDENTITY).unwrap();
    assert!(found.take(&mut pool(), "a", Format::Q4_0, SHAPE).is_some());
}

#[test]
fn of_many_writers_at_once_one_wins_and_readers_see_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = &saved(folder.path());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..15 {
                    let cache = PackCache::empty(IDENTITY);
                    for (name, format) in NAMES {
                        cache.add(name, format, SHAPE, &pack(format));
                    }
                    cache.save(path).unwrap();
                }
            });
        }
        for _ in 0..40 {
            let cache = PackCache::open(path, IDENTITY).unwrap();
            for (name, format) in NAMES {
                let packed = cache.take(&mut pool(), name, format, SHAPE).unwrap();
                assert_eq!(packed.all(), pack(format).all(), "{name}");
            }
            assert!(cache.damage().is_none());
        }
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
#[test]
fn a_pipe_is_no_file_and_nobody_waits_for_its_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.smelt-packed");
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(matches!(PackCache::open(&path, IDENTITY), Err(PackCacheError::Magic)));
}

/// A table with one entry of these numbers, its checksum right.
fn table(name: &[u8], format: u32, numbers: [u64; 5]) -> Vec<u8> {
    let mut bytes = header(IDENTITY, &[]);
    bytes.truncate(HEADER);
    bytes.extend((name.len() as u32).to_le_bytes());
    bytes.extend(name);
    bytes.extend(format.to_le_bytes());
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    let table = (bytes.len() - HEADER) as u64;
    bytes[12..16].copy_from_slice(&1u32.to_le_bytes());
    bytes[16..24].copy_from_slice(&4096u64.to_le_bytes());
    bytes[24..32].copy_from_slice(&table.to_le_bytes());
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes.resize(4096, 0);
    bytes
}

#[test]
fn every_error_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path());
    let bytes = std::fs::read(&path).unwrap();
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        taken(aligned(&bytes)).unwrap_err().to_string()
    };
    assert_eq!(error(&|b| b.truncate(63)), "expected 64 bytes, found 63");
    let len = bytes.len();
    assert_eq!(error(&|b| b.truncate(len - 1)), format!("expected {len} bytes, found {}", len - 1));
    assert_eq!(error(&|b| b[0] ^= 1), "no file of packed weights");
    assert_eq!(error(&|b| b[8] ^= 2), format!("expected version {VERSION}, found {}", VERSION ^ 2));
    assert_eq!(error(&|b| b[32] ^= 1), "made from another model, or before the model changed");
    assert!(error(&|b| b[31] = 0xff).starts_with("expected "));
    assert_eq!(error(&|b| b[70] ^= 1), "the table does not have its checksum");
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let (found, damage) = taken(aligned(&damaged)).unwrap();
    assert_eq!(found, 2);
    let damage = damage.unwrap();
    assert_eq!(damage.to_string(), "weight 'c' does not have its checksum");
    let missing = PackCache::open(&folder.path().join("none"), IDENTITY).err().unwrap();
    assert!(matches!(&missing, PackCacheError::Io(e) if e.kind() == io::ErrorKind::NotFound));
    assert!(std::error::Error::source(&missing).is_some());
    let unwritable = PackCache::empty(IDENTITY).save(&path.join("below-a-file")).unwrap_err();
    assert!(matches!(unwritable, PackCacheError::Io(_)));
}

#[test]
fn every_entry_is_checked() {
    let id = Format::Q8_0.id();
    // 8 rows of 32 columns: 256 bytes of quants and 16 of scales, in whole cache lines.
    let good = [8, 32, 256, 320, 0];
    assert_eq!(validate(&table(b"w", id, good), IDENTITY).unwrap().len(), 1);
    let with = |index: usize, number: u64| {
        let mut numbers = good;
        numbers[index] = number;
        numbers
    };
    for (name, format, numbers, expected) in [
        (&b"\xff"[..], id, good, "a name that is no UTF-8"),
        (b"w", 999, good, "a format that is not known"),
        (b"w", Format::F32.id(), good, "a format that is not packed"),
        (b"w", id, with(2, 64), "a range outside the file"),
        (b"w", id, with(2, u64::MAX - 63), "a range outside the file"),
        (b"w", id, with(3, 4096), "a range outside the file"),
        (b"w", id, with(2, 257), "a range that is not aligned"),
        (b"w", id, with(1, 33), "columns that do not fit in the range"),
        (b"w", id, with(1, 1 << 62), "columns that do not fit in the range"),
        (b"w", id, with(0, 9), "a range that is not as long as rows and columns say"),
        (b"w", id, with(0, u64::MAX), "a range that is not as long as rows and columns say"),
    ] {
        let error = validate(&table(name, format, numbers), IDENTITY).unwrap_err();
        assert!(matches!(error, PackCacheError::Entry { index: 0, what } if what == expected), "{error}");
    }
    let mut two = table(b"w", id, good);
    two[12..16].copy_from_slice(&2u32.to_le_bytes());
    let end = two.len().min(HEADER + 49);
    let sum = checksum(&two[..end]);
    two[end..end + 8].copy_from_slice(&sum.to_le_bytes());
    let error = validate(&two, IDENTITY).unwrap_err();
    assert_eq!(error.to_string(), "entry 1 of the table: the table ends in it");
    let mut none = table(b"w", id, good);
    none[12..16].copy_from_slice(&0u32.to_le_bytes());
    let sum = checksum(&none[..end]);
    none[end..end + 8].copy_from_slice(&sum.to_le_bytes());
    let error = validate(&none, IDENTITY).unwrap_err();
    assert_eq!(error.to_string(), "entry 0 of the table: more bytes than entries");
}

#[test]
fn a_checksum_sees_every_bit_and_the_length() {
    let bytes: Vec<u8> = (0..200u8).collect();
    let sum = checksum(&bytes);
    for bit in 0..8 * bytes.len() {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(checksum(&changed), sum, "bit {bit}");
    }
    assert_ne!(checksum(&[0; 10]), checksum(&[0; 11]));
}

/// The order of packed weights is part of the file's version: whoever changes the order meets this test, and
/// raises [`VERSION`] with it.
#[test]
#[cfg(target_endian = "little")]
fn the_order_of_this_version_is_fixed() {
    let sums = Format::ALL.into_iter().filter(|f| Layout::of(*f).is_some());
    let sum = checksum_of_sums(sums.map(|format| checksum(pack(format).all())));
    assert_eq!((VERSION, sum), (2, ORDER));
}
const ORDER: u64 = 5_565_547_607_656_649_798;

proptest! {
    #[test]
    fn a_changed_file_never_gives_other_weights(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        near_the_start in any::<bool>(),
        cut in prop::option::of(any::<prop::sample::Index>()),
        right_sum in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read(saved(folder.path())).unwrap();
        let table = u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize;
        let range = if near_the_start { HEADER + table } else { bytes.len() };
        for (index, value) in changes {
            bytes[index.index(range)] = value;
        }
        if right_sum {
            // So that what comes after the checksum is reached, too.
            let sum = checksum(&bytes[..HEADER + table]);
            bytes[HEADER + table..][..8].copy_from_slice(&sum.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        // `taken` compares every weight that it gets.
        let _ = taken(aligned(&bytes));
    }
}
