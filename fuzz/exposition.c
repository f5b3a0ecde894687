/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz exposition: whatever two targets tell, the text made of it has only lines that are samples or comments, each family once, and no sample
 * is lost on the way. What follows a NUL is a selector. */
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "policy/node/engine/prom.h"
#include "policy/node/exposition/exposition.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static size_t text_check(struct cgn_str text)
{
	struct prom_reader r = prom_reader_of(text);
	struct prom_sample s;
	struct cgn_str target, rest = text, seen = {NULL, 0};
	size_t samples = 0;
	while (prom_next(&r, &s)) {
		samples++;
		CGN_MUST(prom_label(&s, "cgn_target", &target));
	}
	CGN_MUST(r.skipped == 0);
	while (rest.p != NULL && rest.n > 0) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (!cgn_str_starts(line, "# TYPE "))
			continue;
		struct cgn_str name = {line.p + 7, line.n - 7};
		name = cgn_str_split(&name, ' ');
		CGN_MUST(seen.p == NULL || cgn_str_order(seen, name) < 0);
		seen = name;
	}
	return samples;
}

static size_t merge_samples(const struct exposition_page *const *pages, const struct exposition_match *match)
{
	struct exposition_merge m;
	struct cgn_buf out = {0};
	exposition_merge_begin(&m, pages, 2, match);
	while (exposition_merge_next(&m, &out))
		continue;
	exposition_merge_end(&m);
	size_t samples = text_check(cgn_buf_view(&out));
	cgn_buf_fini(&out);
	return samples;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const uint8_t *nul = n > 0 ? memchr(data, 0, n) : NULL;
	size_t text = nul != NULL ? (size_t)(nul - data) : n;
	struct exposition_cfg cfg = {.target = CGN_STR("a\"\\\n"),
		.instance = CGN_STR("h:1"),
		.max_samples = 1000};
	struct exposition_page *a = NULL, *b = NULL;
	struct exposition_stats of_a, of_b;
	struct exposition_match *match = NULL;
	char *copy = cgn_str_dupz((struct cgn_str){(const char *)data, text});
	CGN_MUST(copy != NULL);
	CGN_MUST(cgn_ok(exposition_page_make((struct cgn_str){copy, text}, &cfg, &a, &of_a, NULL)));
	cfg.target = CGN_STR("b");
	CGN_MUST(cgn_ok(exposition_page_make((struct cgn_str){copy, text / 2}, &cfg, &b, &of_b, NULL)));
	free(copy);
	const struct exposition_page *pages[] = {a, b};
	CGN_MUST(merge_samples(pages, NULL) == of_a.samples + of_b.samples);
	if (nul != NULL &&
		cgn_ok(exposition_match_add(&match, (struct cgn_str){(const char *)nul + 1, n - text - 1},
			NULL)))
		CGN_MUST(merge_samples(pages, match) <= of_a.samples + of_b.samples);
	exposition_match_free(&match);
	exposition_page_free(&a);
	exposition_page_free(&b);
	return 0;
}
