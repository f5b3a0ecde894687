/* SPDX-License-Identifier: Apache-2.0 */
/* federate: GET /federate, the texts of all targets as one, written piece by piece as the client takes them. An answer
 * holds the texts of its begin, so a slow client sees one state; at most FEDERATE_AT_ONCE answers are under way. One
 * loop, its thread. */
#pragma once
#include "joint/daemon/svc/svc.h"
#include "metrics/scrape/scrape.h"

#define FEDERATE_AT_ONCE 8U

struct federate;
/* |s| lives longer. */
struct federate *federate_new(struct cgn_loop *l, struct telemetry *t, struct scrape *s);
/* Cut the answers under way. */
void federate_free(struct federate **take); /* NULL-safe */
void federate_answer(struct federate *f, const struct http_head *h, struct svc_admin_reply *r);
