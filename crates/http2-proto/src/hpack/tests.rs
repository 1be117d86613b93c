//! What headers are read as, by the examples of RFC 7541 and by what a peer may get wrong.

use proptest::prelude::*;

use super::*;

type Fields = Vec<(String, String)>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, ConnectionError> {
    let mut fields = Vec::new();
    decoder.decode(block, |name, value| {
        fields.push((text(name), text(value)));
        Ok(())
    })?;
    Ok(fields)
}

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| *digit != b' ').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(&text(pair), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn fields(fields: &[(&str, &str)]) -> Fields {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    fields.iter().map(owned).collect()
}

/// RFC 7541 appendix C.3 and, with the Huffman code, C.4.
#[test]
fn requests_of_the_specification_share_a_table() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let huffman = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let request = |scheme, path, last: &[(&str, &str)]| {
        let authority = (":authority", "www.example.com");
        let first = [(":method", "GET"), (":scheme", scheme), (":path", path)];
        fields(&[&first, &[authority][..], last].concat())
    };
    let expected = [
        (request("http", "/", &[]), 57),
        (request("http", "/", &[("cache-control", "no-cache")]), 110),
        (
            request("https", "/index.html", &[("custom-key", "custom-value")]),
            164,
        ),
    ];
    for blocks in [plain, huffman] {
        let mut decoder = Decoder::new();
        for (block, (fields, size)) in blocks.iter().zip(&expected) {
            assert_eq!(&decode(&mut decoder, &hex(block)).unwrap(), fields);
            assert_eq!(decoder.size, *size);
        }
    }
}

#[test]
fn old_entries_make_room_for_new_ones() {
    let mut decoder = Decoder::new();
    decoder.set_limit(100);
    // The size, then three fields of 42 bytes each.
    let mut block = vec![0x3f, 100 - 31];
    for name in *b"abc" {
        block.extend([0x40, 5, name, b'n', b'a', b'm', b'e', 5]);
        block.extend(b"value");
    }
    // The newest two are there, and no third.
    block.extend([0xbe, 0xbf]);
    let names: Vec<_> = decode(&mut decoder, &block).unwrap();
    assert_eq!(names[3].0, "cname");
    assert_eq!(names[4].0, "bname");
    assert_eq!(decode(&mut decoder, &[0xc0]), Err(INDEX));
    // A field that is larger than the table leaves nothing in it.
    let mut large = vec![0x40, 1, b'x', 100];
    large.extend([b'y'; 100]);
    decode(&mut decoder, &large).unwrap();
    assert_eq!(decoder.size, 0);
}

#[test]
fn a_smaller_table_has_to_be_confirmed() {
    let mut decoder = Decoder::new();
    decoder.set_limit(0);
    assert_eq!(decode(&mut decoder, &[0x82]), Err(TABLE_SIZE));
    assert_eq!(decode(&mut decoder, &[0x21]), Err(TABLE_SIZE));
    assert_eq!(decode(&mut decoder, &[0x20, 0x82]).unwrap().len(), 1);
    assert_eq!(decode(&mut decoder, &[0x82]).unwrap().len(), 1);
    // Only in the beginning of a block.
    assert_eq!(decode(&mut decoder, &[0x82, 0x20]), Err(TABLE_SIZE));
}

#[test]
fn unreadable_input_is_refused() {
    for (block, error) in [
        (vec![0x80], INDEX),
        (vec![0xbe], INDEX),
        (vec![0x7e, 0], INDEX),
        (vec![0xff, 0xff, 0xff, 0xff, 0xff, 0x0f], INTEGER),
        (vec![0xff], TRUNCATED),
        (vec![0x40, 3, b'a'], TRUNCATED),
        (vec![0x40, 1, b'a'], TRUNCATED),
        (vec![0x00, 0x81, 0x00, 0], HUFFMAN),
        (vec![0x3f, 0xe2, 0x1f], TABLE_SIZE),
    ] {
        assert_eq!(decode(&mut Decoder::new(), &block), Err(error), "{block:?}");
    }
}

#[test]
fn a_status_of_200_is_one_byte() {
    let mut block = Vec::new();
    encode(b":status", b"200", &mut block);
    encode(b":status", b"431", &mut block);
    assert_eq!(block, hex("88 08 03 343331"));
}

proptest! {
    #[test]
    fn written_value_is_read_back(sent in prop::collection::vec(("[a-z-]{1,200}", "[ -~]{0,300}"), 0..8)) {
        let mut block = Vec::new();
        for (name, value) in &sent {
            encode(name.as_bytes(), value.as_bytes(), &mut block);
        }
        prop_assert_eq!(decode(&mut Decoder::new(), &block).unwrap(), sent);
    }

    #[test]
    fn no_block_does_harm(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10)) {
        let mut decoder = Decoder::new();
        for block in blocks {
            if decode(&mut decoder, &block).is_err() {
                break;
            }
            prop_assert!(decoder.size <= 4096);
        }
    }
}
