/* SPDX-License-Identifier: Apache-2.0 */
/* age: the time by which stored things are old enough to be deleted. A wall clock may be wrong by weeks, as
 * before a machine has asked a time server, and a deletion cannot be undone. So the age clock goes on from
 * the time that was seen last, AGE_RATE times as fast as time passes at most, and is never ahead of the wall
 * clock. A program that did not run for a day catches up in an hour. Pure; one thread. */
#pragma once
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define AGE_RATE 24

struct age {
	uint64_t seen_ms; /* Unix milliseconds. */
	cgn_nsec at;      /* The instant of |seen_ms|. */
};
/* Begin with the time that an earlier run saw last, in Unix seconds, at the instant |now|. */
void age_begin(struct age *a, uint64_t seen_s, cgn_nsec now);
/* Return the Unix seconds by which things are deleted at |now|, when the wall clock shows |wall_ms|. */
uint64_t age_now(struct age *a, uint64_t wall_ms, cgn_nsec now);

/* Write the time that was seen to a sealed text, and read it. INVALID: the text is damaged. */
void age_write(const struct age *a, struct cgn_buf *out);
CGN_RC age_read(struct cgn_str text, uint64_t *seen_s, struct cgn_err *err);
