/* A stand-in for XRT's library: the functions of its C interface that the host calls, with the types that XRT's headers
 * give them (xrt_ini.h, xrt_xclbin.h, xrt_device.h, xrt_kernel.h and xrt_bo.h of 2022.1 to 2023.2).
 *
 * Each function hands its arguments to one Python function, as 64-bit words. The C compiler knows the types of the
 * parameters from here alone: what a caller passes as another type arrives as another number. */

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef void *xrtDeviceHandle, *xrtXclbinHandle, *xrtKernelHandle, *xrtBufferHandle;
typedef uint64_t xrtBufferFlags;
typedef uint32_t xrtMemoryGroup;
typedef unsigned char xuid_t[16];
enum xclBOSyncDirection { XCL_BO_SYNC_BO_TO_DEVICE, XCL_BO_SYNC_BO_FROM_DEVICE };

/* Returns whether the call succeeds, and then its result in *result. */
typedef int (*handler_t)(const char *name, size_t result_bytes, size_t count, const uint64_t *arguments, uint64_t *result);

static handler_t handler;

void set_handler(handler_t function) { handler = function; }

/* A function that returns `failure` when the call has failed. */
#define FUNCTION(type, failure, name, parameters, ...) \
    type name parameters \
    { \
        const uint64_t arguments[] = {__VA_ARGS__}; \
        uint64_t result = 0; \
        const size_t count = sizeof arguments / sizeof *arguments; \
        return handler(#name, sizeof(type), count, arguments, &result) ? (type)result : (type)(failure); \
    }
#define HANDLE(type, name, parameters, ...) FUNCTION(type, NULL, name, parameters, __VA_ARGS__)
#define STATUS(name, parameters, ...) FUNCTION(int, -1, name, parameters, __VA_ARGS__)
#define W(argument) (uint64_t)(argument)

STATUS(xrtIniStringSet, (const char *key, const char *value), W(key), W(value))

HANDLE(xrtXclbinHandle, xrtXclbinAllocFilename, (const char *filename), W(filename))
STATUS(xrtXclbinGetXSAName, (xrtXclbinHandle xclbin, char *name, int size, int *ret_size),
       W(xclbin), W(name), W(size), W(ret_size))
STATUS(xrtXclbinGetUUID, (xrtXclbinHandle xclbin, xuid_t uuid), W(xclbin), W(uuid))
STATUS(xrtXclbinFreeHandle, (xrtXclbinHandle xclbin), W(xclbin))

HANDLE(xrtDeviceHandle, xrtDeviceOpenByBDF, (const char *bdf), W(bdf))
STATUS(xrtDeviceLoadXclbinHandle, (xrtDeviceHandle device, xrtXclbinHandle xclbin), W(device), W(xclbin))
STATUS(xrtDeviceClose, (xrtDeviceHandle device), W(device))

HANDLE(xrtKernelHandle, xrtPLKernelOpenExclusive, (xrtDeviceHandle device, const xuid_t uuid, const char *name),
       W(device), W(uuid), W(name))
STATUS(xrtKernelArgGroupId, (xrtKernelHandle kernel, int argno), W(kernel), W(argno))
STATUS(xrtKernelReadRegister, (xrtKernelHandle kernel, uint32_t offset, uint32_t *data), W(kernel), W(offset), W(data))
STATUS(xrtKernelWriteRegister, (xrtKernelHandle kernel, uint32_t offset, uint32_t data), W(kernel), W(offset), W(data))
STATUS(xrtKernelClose, (xrtKernelHandle kernel), W(kernel))

HANDLE(xrtBufferHandle, xrtBOAlloc,
       (xrtDeviceHandle device, size_t size, xrtBufferFlags flags, xrtMemoryGroup group),
       W(device), W(size), W(flags), W(group))
HANDLE(void *, xrtBOMap, (xrtBufferHandle buffer), W(buffer))
FUNCTION(uint64_t, UINT64_MAX, xrtBOAddress, (xrtBufferHandle buffer), W(buffer))
STATUS(xrtBOSync, (xrtBufferHandle buffer, xclBOSyncDirection direction, size_t size, size_t offset),
       W(buffer), W(direction), W(size), W(offset))
STATUS(xrtBOFree, (xrtBufferHandle buffer), W(buffer))

}
