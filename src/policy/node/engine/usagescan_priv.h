/* SPDX-License-Identifier: Apache-2.0 */
/* usagescan, inside: objects of counts. */
#pragma once
#include "policy/node/engine/usagescan.h"

enum usagescan_kind { COUNTS_USAGE, COUNTS_META, COUNTS_TIMINGS };

/* An object of counts begins. */
void usagescan_counts_begin(struct usagescan *s, enum usagescan_kind kind);
/* The name |key| of a member of it, or of a detail, was read. */
void usagescan_counts_key(struct usagescan *s, struct cgn_str key);
/* Return true if the value of the last member may be a count. */
bool usagescan_counts_wanted(const struct usagescan *s);
/* Return true if the value of the last member is an object that may have counts. */
bool usagescan_counts_nest(const struct usagescan *s);
/* The number in |s->number| is the value of the last member. */
void usagescan_counts_number(struct usagescan *s);
/* The object is whole: take its counts. */
void usagescan_counts_end(struct usagescan *s);
