/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz billing: the file of a day's usage, with a right sum. A file that is taken is written and read again
 * unchanged. */
#include "policy/who/billing/billing.h"
#include "base/seal/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct billing *day_read(struct cgn_str text)
{
	struct billing *l = billing_new();
	struct cgn_err err;
	if (!cgn_ok(billing_read_day(l, 0, text, &err)))
		billing_free(&l);
	return l;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_buf text = {0}, once = {0}, twice = {0};
	struct cgn_str raw = {(const char *)data, n};
	uint64_t hour;
	(void)billing_time(raw, &hour);
	seal_begin(&text, "cognitora-usage", 1);
	cgn_buf_str(&text, raw);
	seal_end(&text);
	struct billing *l = day_read(cgn_buf_view(&text));
	if (l != NULL) {
		billing_write_day(l, 0, &once);
		struct billing *same = day_read(cgn_buf_view(&once));
		CGN_MUST(same != NULL);
		billing_write_day(same, 0, &twice);
		CGN_MUST(cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
		billing_free(&same);
	}
	billing_free(&l);
	cgn_buf_fini(&text);
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
	return 0;
}
