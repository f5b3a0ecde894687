/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz cascade_known: lines of learned calibrations. Lines that are taken are written and read again
 * unchanged, and the probabilities of their curve never fall. */
#include "policy/answer/cascade/known.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Take all pairs of |lines|, and write them. */
static void pairs_copy(struct cgn_str lines, bool sure, struct cgn_buf *out)
{
	static struct calibration_known k;
	struct cgn_err err;
	while (lines.n > 0) {
		cgn_rc rc = calibration_known_take(&lines, &k, &err);
		CGN_MUST(cgn_ok(rc) || !sure);
		if (!cgn_ok(rc))
			return;
		double last = 0;
		for (int i = 0; i <= 100 && k.calibration.curve.n > 0; i++) {
			double error = calibration_error_of(&k.calibration.curve, i / 100.0);
			CGN_MUST(error >= last && error <= 1);
			last = error;
		}
		CGN_MUST(calibration_ece(&k.calibration) <= 1);
		calibration_known_put(&k, out);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_buf once = {0}, twice = {0};
	pairs_copy((struct cgn_str){(const char *)data, n}, false, &once);
	pairs_copy(cgn_buf_view(&once), true, &twice);
	CGN_MUST(once.bad || twice.bad || cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
	return 0;
}
