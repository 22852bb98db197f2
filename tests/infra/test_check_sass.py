"""tools/check_sass.py: what it reads in machine code, and what it refuses."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_sass  # noqa: E402


def instruction(text: str, sets: int = 7, waits_for: tuple[int, ...] = ()) -> list[str]:
    """`sets`: the scoreboard that says when it is done, 7: none; `waits_for`: those it waits for."""
    control = sets << 5 | 7 << 8 | sum(1 << 11 + scoreboard for scoreboard in waits_for)
    return [
        f"        /*0030*/    {text} ;    /* 0x0000000000017984 */",
        f"                    /* 0x{control << 41:016x} */",
    ]


def sass(arch: str, **loads_of: list[str]) -> str:
    lines = [f"\tcode for {arch}"]
    for name, loads in loads_of.items():
        lines.append(f"\t\tFunction : _ZN2kd{len(name)}{name}Ev")
        lines += [f"        /*0010*/    @P0 {load} R4, desc[UR4][R2.64] ;" for load in loads]
        lines.append("        /*0020*/    LDC R1, c[0x0][0x28] ;")
        if name == "attn_verify_mla_kernel":
            lines += instruction("SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R66+UR8], RZ")
    return "\n".join(lines)


GOOD = {
    "attn_verify_mla_kernel": ["LDG.E", "UBLKCP.S.G"],
    "attn_verify_gqa_kernel": ["LDG.E.64", "LDGSTS.E.BYPASS.LTC128B.128"],
    "attn_combine_kernel": ["LDG.E.128.STRONG.GPU", "LDG.E"],
    "kv_move_kernel": ["LDG.E.128"],
    "rope_append_kernel": ["LDG.E.128", "LDG.E.U16"],
    "attn_plan_kernel": ["LDG.E"],
}


def faults(text: str, whole: bool = True) -> list[str]:
    return check_sass.library_faults(check_sass.parse(text.splitlines()), whole)


class CheckSass(unittest.TestCase):
    def test_good(self):
        self.assertEqual(faults(sass("sm_90a", **GOOD)), [])

    def test_counts_loads_of_each_kernel(self):
        kernel = check_sass.parse(sass("sm_90a", kv_move_kernel=["LDG.E", "LDG.E"]).splitlines())[0]
        self.assertEqual((kernel.arch, kernel.family()), ("sm_90a", "kv_move"))
        self.assertEqual(dict(kernel.loads), {"LDG.E": 2})

    def test_each_fault_is_found(self):
        for name, loads, word in [
            ("attn_verify_mla_kernel", ["LDGSTS.E.64"], "less than 16 bytes"),
            ("attn_verify_mla_kernel", ["LDGSTS.E.LTC128B.64"], "less than 16 bytes"),
            ("attn_verify_gqa_kernel", ["LDGSTS.E.LTC128B"], "less than 16 bytes"),
            ("attn_verify_gqa_kernel", 9 * ["LDG.E.U16"], "in 9 places"),
            ("attn_combine_kernel", 3 * ["LDG.E.S8"] + 6 * ["LDG.E.U8"], "in 9 places"),
            ("kv_move_kernel", ["LDL.64"], "local memory"),
            ("kv_move_kernel", ["STL"], "local memory"),
            ("attn_plan_kernel", ["STL.128"], "local memory"),
        ]:
            found = faults(sass("sm_90a", **{**GOOD, name: [*GOOD[name], *loads]}))
            self.assertEqual(len(found), 1, found)
            self.assertIn(name, found[0])
            self.assertIn(word, found[0])

    def test_arrivals_at_another_block_wait_for_loads(self):
        load = instruction("LDS.64 R2, [R4]")  # comes back before the next one
        next_load = instruction("LDS.64 R6, [R4+0x10]", sets=2)
        use = instruction("FADD R2, R2, R6", waits_for=(2,))
        arrival = instruction("@!P4 SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R2+URZ], RZ")
        waiting = instruction("SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R2+URZ], RZ", waits_for=(1, 2))
        own = instruction("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R2+URZ], RZ")
        jump = instruction("BRA 0x100")
        maybe = instruction("@P0 BRA 0x100")
        apart = instruction("BRA.DIV UR4, 0x100")
        uniform = instruction("BRA.U !UP0, 0x100")
        # Over the next instruction, which is number 4 of its code; back to number 0.
        over = instruction("@P0 BRA 0x50")
        back = instruction("@P0 BRA 0x0")
        for code, early in [
            (load + next_load + use + arrival, 0),
            (load + next_load + waiting, 0),
            (load + next_load + own + use + arrival, 0),
            (load + next_load + jump + arrival, 0),
            (load + next_load + arrival + use, 1),
            (load + next_load + use + load + arrival + arrival, 2),
            (load + next_load + maybe + arrival, 1),
            (load + next_load + apart + arrival, 1),
            (load + next_load + uniform + arrival, 1),
            (load + next_load + use + over + use + arrival, 0),
            (load + next_load + own + over + use + arrival, 1),
            (arrival + load + next_load + back + use, 1),
            (arrival + load + next_load + use + back, 0),
            (next_load + instruction("FADD R2, R2, R6", waits_for=(3,)) + arrival, 1),
        ]:
            text = sass("sm_90a", **GOOD) + "\n\t\tFunction : attn_verify_mla_halves\n"
            code = [line.replace("/*0030*/", f"/*{8 * number:04x}*/")
                    for number, line in enumerate(code)]  # two lines an instruction
            text += "\n".join(["        /*0010*/    UBLKCP.S.G ;", *code])
            kernel = check_sass.parse(text.splitlines())[-1]
            self.assertEqual(kernel.early_arrivals, early, code)
            found = faults(text)
            self.assertEqual(len(found), early > 0, found)
            if early:
                self.assertIn(f"of {early} reads that are under way", found[0])

    def test_sass_without_arrivals_is_not_read(self):
        text = sass("sm_90a", **GOOD).replace(".RED", "")
        self.assertIn("is written in another way", faults(text)[0])
        self.assertEqual(faults(text, whole=False), [])

    def test_fields_of_lists_and_the_plan_may_be_narrow(self):
        few = {name: [*loads, "LDG.E.U16"] for name, loads in GOOD.items()}
        few["attn_plan_kernel"] = ["LDG.E.U8"] * 9
        self.assertEqual(faults(sass("sm_90a", **few)), [])

    def test_rows_read_four_bytes_at_a_time(self):
        for name in GOOD:
            found = faults(sass("sm_90a", **{**GOOD, name: ["LDG.E.LTC128B"]}))
            self.assertEqual(len(found), 0 if name == "attn_plan_kernel" else 1, found)

    def test_a_loop_of_another_architecture_is_empty(self):
        both = sass("sm_90a", **GOOD, attn_verify_mla_wgmma=["UBLKCP.S.G"]) + "\n"
        both += sass("sm_120a", **GOOD, attn_verify_mla_wgmma=[])
        self.assertEqual(faults(both), [])
        found = faults(sass("sm_90a", **GOOD, attn_verify_mla_wgmma=[]))
        self.assertIn("loads nothing on any architecture", found[0])

    def test_a_missing_family(self):
        lacking = {name: loads for name, loads in GOOD.items() if name != "attn_verify_mla_kernel"}
        text = sass("sm_90a", **GOOD) + "\n" + sass("sm_120a", **lacking)
        self.assertEqual(faults(text), ["no kernel of attn_verify_mla for sm_120a"])
        self.assertEqual(faults(text, whole=False), [])


if __name__ == "__main__":
    unittest.main()
