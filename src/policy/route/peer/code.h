/* SPDX-License-Identifier: Apache-2.0 */
/* code: sets of fingerprints and numbers on the wire. Pure.
 *
 * A set is a Golomb-Rice code of the gaps between its members: 13.6 bits a block for a million of 32 bits each. */
#pragma once
#include "base/codec/cursor.h"
#include "base/core/buf.h"
#include "policy/route/peer/set.h"

/* Version 1. Append the set's code: u32 members · u32 bytes · u8 bits of a remainder · bits. */
void peer_set_put(const struct peer_set *s, struct cgn_buf *out);
/* Read a code into a new set, which the caller owns. CGN_INVALID: it is none, or is of more than PEER_BLOCKS; its
 * memory is at most 32 times the bytes. CGN_NO_MEMORY. */
CGN_RC peer_set_get(struct cgn_cursor *from, struct peer_set **out, struct cgn_err *err);

/* Version 2. Append the set's code without the lowest |drop| bits of the members, which are 0: number of members · u8 bits
 * of a remainder · bits. The members without these bits are below |range|. */
void peer_gaps_put(const struct peer_set *s, unsigned drop, uint64_t range, struct cgn_buf *out);
/* As peer_set_get. CGN_INVALID also: a member is not below |range|. The set's width is 32 - |drop|. */
CGN_RC peer_gaps_get(struct cgn_cursor *from, unsigned drop, uint64_t range, struct peer_set **out,
	struct cgn_err *err);

/* Append a number: seven bits a byte, the lowest ones first, and the highest bit set in all but the last byte. */
void peer_number_put(uint64_t v, struct cgn_buf *out);
/* Read a number. It is bad if it is greater than |most|. */
uint64_t peer_number_get(struct cgn_cursor *from, uint64_t most);
