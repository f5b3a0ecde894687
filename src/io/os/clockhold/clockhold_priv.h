/* SPDX-License-Identifier: Apache-2.0 */
/* clockhold, inside: the messages between caller and helper, one in each packet, and the file of limits. */
#pragma once
#include "io/os/clockhold/clockhold.h"

enum clockhold_order_kind { CLOCKHOLD_LOCK = 1, CLOCKHOLD_RESET };
struct clockhold_order {
	uint32_t kind; /* enum clockhold_order_kind */
	uint32_t low_mhz, high_mhz, take_over;
	char uuid[96];
};
enum clockhold_word_kind {
	CLOCKHOLD_GPU = 1,
	CLOCKHOLD_READY,
	CLOCKHOLD_WAITING,
	CLOCKHOLD_DONE,
	CLOCKHOLD_TROUBLE
};
struct clockhold_word {
	uint32_t kind; /* enum clockhold_word_kind */
	uint32_t code; /* DONE, TROUBLE: enum cgn_code */
	uint32_t high_mhz, lifted, failed;
	char why[200];
	struct nvml_clock_gpu gpu; /* GPU: all of it. DONE: uuid */
};

/* ---- record.c: the limits that this program has set, in a file ---- */
/* Lines "+UUID" and "-UUID", each written before the limit is set and after it was lifted; empty when there is none. A
 * line that a power cut has cut off is ignored: its limit was never set. */
#define RECORD_MAX_BYTES (1024 * 1024)
struct record {
	int fd;
	size_t n, bytes;
	char uuid[NVML_MAX_GPUS][96];
};
/* Open the file and lock it. |waiting| is called once when another process has it, then this waits. STORAGE. */
CGN_RC record_open(struct record *r, const char *path, void (*waiting)(void *user), void *user,
	struct cgn_err *err);
bool record_has(const struct record *r, const char *uuid);
CGN_RC record_add(struct record *r, const char *uuid, struct cgn_err *err); /* STORAGE: it is not noted. */
void record_remove(struct record *r, const char *uuid);
