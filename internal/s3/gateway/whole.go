package gateway

import (
	"fmt"
	"io"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/utils"
)

// takeWhole has a body that breaks off fail. The web server ends such a body
// like any other, and the library looks at hashes alone, so that half an upload
// without one would become an object.
func takeWhole(ctx fiber.Ctx) error {
	req := ctx.Request()
	if body, length := req.BodyStream(), req.Header.ContentLength(); body != nil && length > 0 {
		utils.ContextKeyBodyReader.Set(ctx, &whole{body: body, left: int64(length)})
	}
	return ctx.Next()
}

// whole is a body of a known length.
type whole struct {
	body io.Reader
	left int64 // bytes that are still to come
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	w.left -= int64(n)
	if err == io.EOF && w.left > 0 {
		err = fmt.Errorf("read the body: %d bytes are missing: %w", w.left, io.ErrUnexpectedEOF)
	}
	return n, err
}
