/* SPDX-License-Identifier: Apache-2.0 */
/* solve: small symmetric systems of linear equations. Pure. */
#pragma once
#include <stdbool.h>

#define SOLVE_MOST 8
/* Invert the positive definite matrix |a| of |n| rows, at most SOLVE_MOST. False: it is not positive definite. */
bool solve_invert(double a[SOLVE_MOST][SOLVE_MOST], int n, double out[SOLVE_MOST][SOLVE_MOST]);
