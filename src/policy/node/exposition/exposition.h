/* SPDX-License-Identifier: Apache-2.0 */
/* exposition: Prometheus texts of many targets as one. A page is what one target told, checked line by line, with the
 * labels that name the target; a merge writes pages as one text, each family once with its HELP and TYPE.
 *
 * Formats read: Prometheus text 0.0.4 and the samples of OpenMetrics
 * (https://prometheus.io/docs/instrumenting/exposition_formats/). Written: text 0.0.4. Lines that are not valid are left
 * out and counted: one bad line would make Prometheus refuse the whole text. Time stamps and exemplars are left out.
 * Pure; a page does not change once it is made, any thread may read it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define EXPOSITION_LABELS 64 /* Most labels of a sample; one with more is left out. */

struct exposition_cfg {
	struct cgn_str target, instance; /* Values of the labels cgn_target and instance */
	size_t max_samples;              /* Further samples are left out. */
};
struct exposition_stats {
	size_t samples, skipped; /* skipped: lines that are not valid */
	size_t cut;              /* Samples beyond the most */
};

/* Memory: about the text and 50 bytes for each sample. */
struct exposition_page;
/* Labels of the text that are called cgn_target or instance become exported_cgn_target and exported_instance.
 * CGN_NO_MEMORY only. */
CGN_RC exposition_page_make(struct cgn_str text, const struct exposition_cfg *cfg,
	struct exposition_page **out, struct exposition_stats *stats, struct cgn_err *err);
void exposition_page_free(struct exposition_page **take); /* NULL-safe */
size_t exposition_page_bytes(const struct exposition_page *p);

/* ---- selectors, as in match[] of Prometheus' /federate ---- */

struct exposition_match; /* A list of selectors; a sample fits if it fits one of them. */
#define EXPOSITION_SELECTORS 32
/* Add a selector: NAME, {label="value",...} or NAME{...} with =, !=, =~ and !~; *list may be NULL. Regular
 * expressions are those of PCRE2, fit the whole value, and have no back references to unnamed groups; one
 * takes at most 64 KiB, and a comparison at most 20,000 steps and 256 KiB: a value that needs more fits
 * neither =~ nor !~. A list is used by one thread at a time. CGN_INVALID names the error. */
CGN_RC exposition_match_add(struct exposition_match **list, struct cgn_str selector, struct cgn_err *err);
void exposition_match_free(struct exposition_match **take); /* NULL-safe */

/* ---- pages as one text ---- */

/* Where a merge is. The pages, and |match|, stay until it ends. */
struct exposition_merge {
	const struct exposition_page *const *pages;
	size_t n;
	const struct exposition_match *match; /* NULL: everything */
	uint32_t *at;                         /* For each page, its next family */
	struct cgn_str family;                /* The family that is being written; n is 0: none */
	size_t page;                          /* The next page of the family */
	bool headed;                          /* HELP and TYPE are written. */
};
void exposition_merge_begin(struct exposition_merge *m, const struct exposition_page *const *pages, size_t n,
	const struct exposition_match *match);
/* Append the next part to |out|: at most one page's samples of a family, and HELP and TYPE before the first. False: the
 * text is complete. */
bool exposition_merge_next(struct exposition_merge *m, struct cgn_buf *out);
void exposition_merge_end(struct exposition_merge *m);
