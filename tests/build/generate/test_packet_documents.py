"""The documents of the packet say what the declaration says."""

import json
import random
import re
import subprocess

from p4sgd.build.generate.packet_documents import c_header, json_text, markdown
from p4sgd.hw.spec.packet import ETHERTYPE, FIELDS, FRAME_BYTES, VERSION, Field, Packet, PacketType


def test_json_rebuilds_the_fields():
    document = json.loads(json_text("p4sgd generate"))
    assert tuple(Field(**field) for field in document["fields"]) == FIELDS
    assert (document["bytes"], document["ethertype"], document["version"]) == (FRAME_BYTES, ETHERTYPE, VERSION)
    assert document["types"] == {kind.name: int(kind) for kind in PacketType}


def test_c_header_decodes_a_packet(tmp_path):
    """A C program that knows only the header's offsets finds every field of a packet that Python made."""
    rng = random.Random(5)
    packet = Packet(
        type=PacketType.FULL,
        job=rng.randrange(256),
        slot=rng.randrange(65536),
        round=rng.randrange(65536),
        shard=rng.randrange(256),
        workers=rng.randrange(256),
        bitmap=rng.randrange(1 << 32),
        values=tuple(rng.randrange(-(1 << 31), 1 << 31) for _ in range(8)),
        destination=rng.randrange(1 << 48),
        source=rng.randrange(1 << 48),
    )
    names = [field.name.upper() for field in FIELDS]
    prints = "".join(f'printf("%llu\\n", get(P4SGD_PACKET_{name}_OFFSET, P4SGD_PACKET_{name}_BITS));' for name in names)
    (tmp_path / "p4sgd_packet.h").write_text(c_header("p4sgd generate"))
    (tmp_path / "decode.c").write_text(
        f"""
        #include <stdio.h>
        #include "p4sgd_packet.h"
        #define FIELD(name) get(P4SGD_PACKET_##name##_OFFSET, P4SGD_PACKET_##name##_BITS)
        static unsigned char frame[P4SGD_PACKET_BYTES];
        static unsigned long long get(unsigned offset, unsigned bits) {{
            unsigned long long value = 0;
            for (unsigned i = offset; i < offset + bits; i++)
                value = value << 1 | (frame[i / 8] >> (7 - i % 8) & 1);
            return value;
        }}
        int main(void) {{
            if (fread(frame, 1, sizeof frame, stdin) != P4SGD_PACKET_BYTES) return 1;
            if (FIELD(ETHERTYPE) != P4SGD_PACKET_ETHERTYPE_VALUE) return 2;
            if (FIELD(VERSION) != P4SGD_PACKET_VERSION_VALUE) return 3;
            if (FIELD(TYPE) != P4SGD_PACKET_TYPE_FULL) return 4;
            {prints}
            return 0;
        }}
        """
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(["gcc", *flags, "-o", tmp_path / "decode", tmp_path / "decode.c"], check=True)
    done = subprocess.run([tmp_path / "decode"], input=packet.to_bytes(), check=True, capture_output=True)
    got = dict(zip([field.name for field in FIELDS], map(int, done.stdout.split()), strict=True))
    assert got == {
        "destination": packet.destination,
        "source": packet.source,
        "ethertype": ETHERTYPE,
        "version": VERSION,
        "type": packet.type,
        "job": packet.job,
        "slot": packet.slot,
        "round": packet.round,
        "shard": packet.shard,
        "workers": packet.workers,
        "bitmap": packet.bitmap,
        "reserved": 0,
        **{f"value{i}": value & 0xFFFFFFFF for i, value in enumerate(packet.values)},
    }


def test_markdown_covers_the_frame():
    text = markdown("p4sgd generate")
    assert f"frame of {FRAME_BYTES} bytes" in text
    for field in FIELDS:
        assert len(re.findall(rf"\| {field.bits} \| `{field.name}` \|", text)) == 1
    assert "| 14 [7:4] | 4 | `version` |" in text
    assert "| 14 [3:0] | 4 | `type` |" in text
    assert "| 0–5 | 48 | `destination` |" in text
    assert "| 60–63 | 32 | `value7` |" in text
