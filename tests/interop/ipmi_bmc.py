# SPDX-License-Identifier: Apache-2.0
"""OpenIPMI's ipmi_sim as the BMC of a machine with two supplies, a meter, a CPU and a GPU that is off."""
import subprocess

from cluster import free_port

WATTS, CELSIUS, RPM = 6, 1, 18  # units of sensors (IPMI 2.0, table 43-15)
# number, name, unit, kind of entity, its instance, kind of sensor, multiplier, raw value (None: not scanned)
SENSORS = [(1, "PS1 Input Power", WATTS, 10, 1, 0x0b, 4, 100), (2, "PS2 Input Power", WATTS, 10, 2, 0x0b, 4, 90),
           (3, "CPU1 Temp", CELSIUS, 3, 1, 0x01, 1, 45), (4, "Sys Power", WATTS, 7, 1, 0x0b, 4, 200),
           (5, "GPU1 Power", WATTS, 11, 1, 0x0b, 4, None), (6, "Fan1", RPM, 29, 1, 0x04, 100, 50)]


def record(number, name, unit, entity, instance, kind, multiplier):
    """A full sensor record (IPMI 2.0, 43.1)."""
    body = [0x20, 0, number, entity, instance, 0x7f, 0x68, kind, 0x01, 0, 0, 0, 0, 0, 0, 0, unit, 0, 0, multiplier, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]
    body += [0] * (42 - len(body)) + [0xc0 | len(name)] + list(name.encode())
    return [number, 0, 0x51, 0x01, len(body)] + body


class Sim:
    def __init__(self, folder, user="cgn", password="secret"):
        self.port, self.folder = free_port(), folder
        zeros = "0" * 15
        lines = ["mc_setbmc 0x20", "mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02", "sel_enable 0x20 1000 0x0a"]
        for number, name, unit, entity, instance, kind, multiplier, value in SENSORS:
            lines.append(f"sensor_add 0x20 0 {number} {kind:#x} 0x01")
            if value is not None:
                lines.append(f"sensor_set_value 0x20 0 {number} {value:#x} 0")
            lines.append(f"sensor_set_event_support 0x20 0 {number} enable {'scanning' if value is not None else 'no-scanning'} per-state"
                         f" {zeros} {zeros} {zeros} {zeros}")
            lines.append("main_sdr_add 0x20 " + " ".join(f"{b:#04x}" for b in record(number, name, unit, entity, instance, kind, multiplier)))
        (folder / "bmc.emu").write_text("\n".join([*lines, "mc_enable 0x20", ""]))
        auths = "\n".join(f"    allowed_auths_{who} none md2 md5 straight" for who in ("callback", "user", "operator", "admin"))
        (folder / "lan.conf").write_text(f'name "bmc"\nset_working_mc 0x20\n  startlan 1\n    addr 127.0.0.1 {self.port}\n    priv_limit admin\n{auths}\n'
                                         "    guid a123456789abcdefa123456789abcdef\n  endlan\n"
                                         f'  user 2 true "{user}" "{password}" admin 10 none md2 md5 straight\n')
        (folder / "state").mkdir()
        with open(folder / "ipmi_sim.log", "ab") as log:
            self.popen = subprocess.Popen(["ipmi_sim", "-n", "-c", "lan.conf", "-f", "bmc.emu", "-s", "state"], cwd=folder, stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log)

    def kill(self):
        self.popen.kill()
        self.popen.wait()
