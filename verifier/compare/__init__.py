"""How two answers differ and why: pure functions, no input or output, nothing imported but the records."""
