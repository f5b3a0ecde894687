/* SPDX-License-Identifier: Apache-2.0 */
/* scrape: the last text of each target. Targets are those of [scrape_targets], the routers (metrics.scrape_routers), and the
 * agents and block stores of the nodes that a router knows. Each is asked every metrics.scrape_interval, at an offset of
 * its own. A text is told for three intervals and the timeout after it was read; of earlier ones nothing is kept.
 *
 * A target that is slow, endless, too large or broken costs itself its bound (scrape_timeout, scrape_max_bytes,
 * scrape_max_samples) and the others nothing: at most SCRAPE_AT_ONCE are asked at once, each on a connection of its own.
 * Memory: scrape_memory for the texts, SCRAPE_AT_ONCE x scrape_max_bytes while they arrive, and about 3 KiB for each of
 * at most SCRAPE_MOST targets. One loop, its thread. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/metrics.pb-c.h"
#include "io/os/loop/loop.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"
#include "policy/node/exposition/exposition.h"

#define SCRAPE_AT_ONCE 32U
#define SCRAPE_MOST    8192U

struct scrape;
/* Check the settings that need no network. The message names the setting. */
CGN_RC scrape_check(const struct config *cfg, struct cgn_err *err);
/* |cfg| is needed during the call only. Fails as scrape_check does, and for files that cannot be read. */
CGN_RC scrape_open(struct cgn_loop *l, struct telemetry *t, const struct config *cfg, struct scrape **out,
	struct cgn_err *err);
/* Take over the settings: targets that did not change keep their texts. On failure nothing changes. */
CGN_RC scrape_reload(struct scrape *s, const struct config *cfg, struct cgn_err *err);
void scrape_close(struct scrape **take); /* NULL-safe */

/* Called with each whole text as it comes: |name| is the node of a discovered agent, else the name of a given
 * target. The text is fresh for |max_age|. One listener; NULL: none. */
typedef void scrape_on_text(void *user, const char *name, struct cgn_str text, cgn_nsec max_age);
void scrape_listen(struct scrape *s, scrape_on_text *fn, void *user);

/* A text, counted: it stays while someone uses it. */
struct scrape_page {
	unsigned refs;
	struct exposition_page *page;
};
/* Get the texts that are fresh, in the order of the targets' names, for scrape_pages_drop. *n is their number. */
struct scrape_page **scrape_pages(struct scrape *s, size_t *n);
void scrape_pages_drop(struct scrape_page ***take, size_t n);

/* Fill the state of each target. */
void scrape_fill(struct scrape *s, struct pb_tree *t, Cognitora__V1__Targets *to);
