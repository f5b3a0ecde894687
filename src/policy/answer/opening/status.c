/* SPDX-License-Identifier: Apache-2.0 */
/* status: whose fault a status is. */
#include "base/core/err.h"
#include "policy/answer/opening/opening.h"

enum opening_status opening_status(int status)
{
	static const struct {
		int status;
		enum opening_status says;
	} rows[] = {
#define STATUS(status, meaning, example) {status, STATUS_##meaning},
#include "policy/answer/opening/statuses.def"
#undef STATUS
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (rows[i].status == status)
			return rows[i].says;
	if (status / 100 == 2)
		return STATUS_JUDGED;
	if (status / 100 == 3)
		return STATUS_NOTHING;
	return status / 100 == 4 ? STATUS_REQUEST : STATUS_FAILED;
}
