/* SPDX-License-Identifier: Apache-2.0 */
/* opening: the first bytes of an attempt's answer, until they tell whether it is an answer (policy/answer/opening). Held are at most
 * GW_OPENING_MAX bytes and the piece that comes with them, for at most GW_OPENING_WAIT; then the bytes pass for an answer, and what
 * follows is still read until there is a verdict. Comments and whitespace beyond that are dropped. */
#pragma once
#include "router/request/attempt/attempt.h"

#define GW_OPENING_MAX  ((size_t)16 * 1024)
#define GW_OPENING_WAIT CGN_SEC

/* The head came: say what the bytes behind it are to be. */
void gw_opening_head(struct gw_attempt *a);
/* Take the next bytes, before anything of the answer is relayed. a->opening.bytes are all bytes until now; they are borrowed from
 * the caller until gw_opening_keep. Returns true if the owner has to look: there is a verdict. */
bool gw_opening_data(struct gw_attempt *a, struct cgn_str data);
/* Read the next bytes without holding them. */
void gw_opening_read(struct gw_attempt *a, struct cgn_str data);
/* The owner has looked, and goes on waiting: keep the bytes that are borrowed. */
void gw_opening_keep(struct gw_attempt *a);
/* The bytes were relayed, or are of no use: forget them. */
void gw_opening_drop(struct gw_attempt *a);
/* Return the verdict on the answer. It falls at the latest when the call has closed, and when the bytes were
 * held for long. */
enum opening_says gw_opening_says(struct gw_attempt *a);
/* The answer has ended in good order, and was relayed: return true if it was none. */
bool gw_opening_failed(struct gw_attempt *a);
