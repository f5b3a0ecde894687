/* SPDX-License-Identifier: Apache-2.0 */
/* teller: whether a node's engine tells the tokens of prompts. An engine that did not answer in time is not asked
 * for a while, and then by one request first. Any thread. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define TELLER_REST (10 * CGN_SEC)

struct teller {
	_Atomic uint32_t asked; /* Questions without an answer */
	_Atomic uint64_t heard; /* The last answer, or the first question after all were answered */
	_Atomic uint64_t rests; /* End of the rest; 0: none since the last answer */
};

/* Forget silent times and answers; questions under way still end. */
void teller_reset(struct teller *t);
/* Each question ends with teller_ended. */
void teller_asked(struct teller *t, cgn_nsec now);
void teller_ended(struct teller *t);
void teller_answered(struct teller *t, cgn_nsec now);
void teller_was_late(struct teller *t, cgn_nsec now);
/* Return true if no request may ask. */
bool teller_rests(const struct teller *t, cgn_nsec now);
/* Questions wait, and none was answered for longer than |patience|: ask others first. */
bool teller_hesitates(const struct teller *t, cgn_nsec now, cgn_nsec patience);
