/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz trace: any bytes as a trace are refused with a line number, or the trace is the same after writing and
 * reading again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lab/trace/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_same(const struct trace *a, const struct trace *b)
{
	CGN_MUST(a->n == b->n && a->n_ids == b->n_ids);
	CGN_MUST(a->n_ids == 0 || memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids) == 0);
	for (size_t i = 0; i < a->n; i++) {
		const struct trace_request *x = &a->requests[i], *y = &b->requests[i];
		CGN_MUST(x->input == y->input && x->output == y->output && x->first == y->first &&
			x->n == y->n);
		CGN_MUST((x->session == 0) == (y->session == 0));
	}
}

static void check_caches(const struct trace *t)
{
	struct trace_found all, some, none;
	CGN_MUST(cgn_ok(trace_one_cache(t, 0, &all, NULL)) && cgn_ok(trace_one_cache(t, 2, &some, NULL)));
	CGN_MUST(cgn_ok(trace_one_cache(t, all.distinct, &none, NULL)));
	CGN_MUST(
		some.found <= all.found && all.found + all.distinct == all.blocks && none.found == all.found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct trace t, again;
	struct cgn_err err = {0};
	struct cgn_buf text = {0};
	if (!cgn_ok(trace_parse((struct cgn_str){(const char *)data, n}, "fuzz", 0, 0, &t, &err))) {
		CGN_MUST(err.msg[0] != '\0');
		return 0;
	}
	trace_write(&t, &text);
	CGN_MUST(cgn_ok(trace_parse(cgn_buf_view(&text), "again", t.block_tokens, 0, &again, &err)));
	check_same(&t, &again);
	check_caches(&t);
	trace_fini(&t);
	trace_fini(&again);
	cgn_buf_fini(&text);
	return 0;
}
