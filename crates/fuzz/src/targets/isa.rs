//! Bytes as instructions, and bytes as program text.

use xway_isa::{NoNames, Slot, assemble, decode, encode, listing, slots_from_bytes, slots_to_bytes};

pub fn run(data: &[u8]) {
    let whole = &data[..data.len() / 8 * 8];
    let slots = slots_from_bytes(whole).expect("a multiple of eight");
    assert_eq!(slots_to_bytes(&slots), whole, "slots lose bytes");
    if let Ok(insns) = decode(&slots) {
        let mut again: Vec<Slot> = Vec::new();
        insns.iter().flatten().for_each(|i| encode(i, &mut again));
        assert_eq!(again, slots, "decode and encode are no inverses");
        let text = listing(&slots, &NoNames).expect("what decodes has a text");
        let back = assemble(&text).unwrap_or_else(|e| panic!("own text is refused: {e}\n{text}"));
        assert_eq!(back, slots, "text loses something:\n{text}");
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(slots) = assemble(text)
    {
        decode(&slots).expect("assembled programs decode");
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "r1 = *(u32 *)(r1 +0)\nif r1 > 0x5 goto pc+1\nr1 += -4\nr0 = 2\nexit",
        "r1 = 0x1122334455667788\nr1 = map[idx:0]\nr1 = map[idx:1][0]+8\nr2 = subprog[+1]\ncall pc+1\nexit\nexit",
        "lock *(u64 *)(r1 +0) += r2\nr2 = atomic64_fetch_or((u64 *)(r1 -8), r2)\nr0 = atomic_cmpxchg((u32 *)(r1 +0), r0, r2)",
        "r1 = (s8)r2\nw1 s%= w2\nr1 = bswap64 r1\nr2 = load_acquire((u8 *)(r1 +1))\nstore_release((u16 *)(r1 +2), r2)",
        "start: w1 = -1 ; comment\nmay_goto start\ngotol start\ncall kfunc #5 btf 1\ncall helper#1\nr0 = *(u8 *)skb[r6 + 2]\nexit",
    ];
    let programs = texts.iter().map(|t| slots_to_bytes(&assemble(t).expect("seeds are right")));
    programs.chain(texts.iter().map(|t| t.as_bytes().to_vec())).collect()
}
