//! The table of arithmetic and conditions: one row for each operation.
//!
//! A row names the operation in `xway_isa`, its four codes, and its meaning over two operands of the row's width. The codes
//! are: 64 bits with a register, 64 bits with an immediate, 32 bits with a register, 32 bits with an immediate. Codes,
//! translation and interpreter are all made from these rows.
//!
//! Division by zero gives 0, remainder by zero the dividend, and a quotient that does not fit wraps (RFC 9669 section 4.1).

/// Hands all rows to the macro `$with`, behind whatever else it is given.
macro_rules! rows {
    ($with:ident! $($first:tt)*) => {
        $with! {
            $($first)*
            unsigned {
                Add: Add64X Add64K Add32X Add32K, |a, b| a.wrapping_add(b);
                Sub: Sub64X Sub64K Sub32X Sub32K, |a, b| a.wrapping_sub(b);
                Mul: Mul64X Mul64K Mul32X Mul32K, |a, b| a.wrapping_mul(b);
                Div: Div64X Div64K Div32X Div32K, |a, b| a.checked_div(b).unwrap_or(0);
                Mod: Mod64X Mod64K Mod32X Mod32K, |a, b| a.checked_rem(b).unwrap_or(a);
                Or: Or64X Or64K Or32X Or32K, |a, b| a | b;
                And: And64X And64K And32X And32K, |a, b| a & b;
                Xor: Xor64X Xor64K Xor32X Xor32K, |a, b| a ^ b;
                Lsh: Lsh64X Lsh64K Lsh32X Lsh32K, |a, b| a.wrapping_shl(b as u32);
                Rsh: Rsh64X Rsh64K Rsh32X Rsh32K, |a, b| a.wrapping_shr(b as u32);
            }
            signed {
                SDiv: SDiv64X SDiv64K SDiv32X SDiv32K, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) };
                SMod: SMod64X SMod64K SMod32X SMod32K, |a, b| if b == 0 { a } else { a.wrapping_rem(b) };
                Arsh: Arsh64X Arsh64K Arsh32X Arsh32K, |a, b| a.wrapping_shr(b as u32);
            }
            if_unsigned {
                Eq: JEq64X JEq64K JEq32X JEq32K, |a, b| a == b;
                Ne: JNe64X JNe64K JNe32X JNe32K, |a, b| a != b;
                Set: JSet64X JSet64K JSet32X JSet32K, |a, b| a & b != 0;
                Gt: JGt64X JGt64K JGt32X JGt32K, |a, b| a > b;
                Ge: JGe64X JGe64K JGe32X JGe32K, |a, b| a >= b;
                Lt: JLt64X JLt64K JLt32X JLt32K, |a, b| a < b;
                Le: JLe64X JLe64K JLe32X JLe32K, |a, b| a <= b;
            }
            if_signed {
                SGt: JSGt64X JSGt64K JSGt32X JSGt32K, |a, b| a > b;
                SGe: JSGe64X JSGe64K JSGe32X JSGe32K, |a, b| a >= b;
                SLt: JSLt64X JSLt64K JSLt32X JSLt32K, |a, b| a < b;
                SLe: JSLe64X JSLe64K JSLe32X JSLe32K, |a, b| a <= b;
            }
        }
    };
}
pub(crate) use rows;
