/*-------------------------------------------------------------------------
 *
 * function_call.h
 *	  The protocol's function call.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_FUNCTION_CALL_H
#define MIP_FUNCTION_CALL_H

extern void mip_function_call_init(void);

#endif							/* MIP_FUNCTION_CALL_H */
