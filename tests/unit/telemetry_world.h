/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry_world: one registry with the metrics of joint's rooms, for all tests of a program. */
#pragma once
#include "joint/report/telemetry/telemetry.h"

CGN_UNUSED static struct telemetry *test_telemetry(void)
{
	static struct telemetry *t;
	if (t == NULL)
		t = telemetry_new(NULL, 0);
	return t;
}
