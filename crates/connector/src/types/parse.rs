//! Reads the SQL text of a type.

use super::{DataType, Field, LogicalType, MAX_LENGTH};

/// How deep types may nest: more than any table needs, less than the stack.
const MAX_DEPTH: usize = 64;

/// A type's text that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no column type: {reason} at character {at}")]
pub struct TypeError {
    text: String,
    reason: String,
    at: usize,
}

/// Reads the whole of `text`.
pub(super) fn parse(text: &str) -> Result<LogicalType, TypeError> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
    };
    let ty = parser.ty()?;
    parser.space();
    if parser.at < text.len() {
        return Err(parser.expected("the end"));
    }
    Ok(ty)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn fail(&self, reason: impl Into<String>) -> TypeError {
        TypeError {
            text: self.text.to_owned(),
            reason: reason.into(),
            at: self.text[..self.at].chars().count() + 1,
        }
    }

    fn expected(&self, what: &str) -> TypeError {
        self.fail(format!("expected {what}"))
    }

    /// Takes `mark` if it comes next.
    fn take(&mut self, mark: char) -> bool {
        self.space();
        let found = self.rest().starts_with(mark);
        if found {
            self.at += mark.len_utf8();
        }
        found
    }

    fn need(&mut self, mark: char) -> Result<(), TypeError> {
        if self.take(mark) {
            Ok(())
        } else {
            Err(self.expected(&format!("'{mark}'")))
        }
    }

    /// Takes the next word, in upper case; empty if there is none.
    fn word(&mut self) -> String {
        self.space();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        self.at += end;
        rest[..end].to_ascii_uppercase()
    }

    /// Takes `words` if all of them come next, in any case.
    fn take_words(&mut self, words: &[&str]) -> bool {
        let start = self.at;
        for word in words {
            if self.word() != *word {
                self.at = start;
                return false;
            }
        }
        true
    }

    fn number(&mut self, least: u32, most: u32) -> Result<u32, TypeError> {
        self.space();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let number = rest[..end]
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.expected(&format!("a number from {least} to {most}")))?;
        self.at += end;
        Ok(number)
    }

    /// `(n)`, or `default` without it.
    fn argument(&mut self, least: u32, most: u32, default: u32) -> Result<u32, TypeError> {
        if !self.take('(') {
            return Ok(default);
        }
        let number = self.number(least, most)?;
        self.need(')')?;
        Ok(number)
    }

    fn precision(&mut self, default: u8) -> Result<u8, TypeError> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the argument is at most 9 and the default came from a u8"
        )]
        let precision = self.argument(0, 9, u32::from(default))? as u8;
        Ok(precision)
    }

    fn ty(&mut self) -> Result<LogicalType, TypeError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.fail(format!("nested deeper than {MAX_DEPTH}")));
        }
        let data = self.data()?;
        self.depth -= 1;
        let nullable = !self.take_words(&["NOT", "NULL"]);
        if nullable {
            self.take_words(&["NULL"]);
        }
        Ok(LogicalType { data, nullable })
    }

    fn data(&mut self) -> Result<DataType, TypeError> {
        self.space();
        let start = self.at;
        let word = self.word();
        Ok(match word.as_str() {
            "BOOLEAN" => DataType::Boolean,
            "TINYINT" => DataType::TinyInt,
            "SMALLINT" => DataType::SmallInt,
            "INT" | "INTEGER" => DataType::Int,
            "BIGINT" => DataType::BigInt,
            "FLOAT" => DataType::Float,
            "DOUBLE" => {
                self.take_words(&["PRECISION"]);
                DataType::Double
            }
            "CHAR" => DataType::Char(self.argument(0, MAX_LENGTH, 1)?),
            "VARCHAR" => DataType::VarChar(self.argument(0, MAX_LENGTH, 1)?),
            "STRING" => DataType::string(),
            "BINARY" => DataType::Binary(self.argument(0, MAX_LENGTH, 1)?),
            "VARBINARY" => DataType::VarBinary(self.argument(0, MAX_LENGTH, 1)?),
            "BYTES" => DataType::bytes(),
            "DECIMAL" | "DEC" | "NUMERIC" => self.decimal()?,
            "DATE" => DataType::Date,
            "TIME" => {
                let precision = self.precision(0)?;
                self.take_words(&["WITHOUT", "TIME", "ZONE"]);
                DataType::Time(precision)
            }
            "TIMESTAMP" => self.timestamp()?,
            "TIMESTAMP_LTZ" => DataType::TimestampLtz(self.precision(6)?),
            "INTERVAL" => self.interval()?,
            "ARRAY" => DataType::Array(Box::new(self.parameter()?)),
            "MULTISET" => DataType::Multiset(Box::new(self.parameter()?)),
            "MAP" => {
                self.need('<')?;
                let key = self.ty()?;
                self.need(',')?;
                let value = self.ty()?;
                self.need('>')?;
                DataType::Map(Box::new(key), Box::new(value))
            }
            "ROW" => self.row()?,
            "" => return Err(self.expected("a type")),
            _ => {
                self.other()?;
                DataType::Other(self.text[start..self.at].trim().to_owned())
            }
        })
    }

    fn parameter(&mut self) -> Result<LogicalType, TypeError> {
        self.need('<')?;
        let ty = self.ty()?;
        self.need('>')?;
        Ok(ty)
    }

    fn decimal(&mut self) -> Result<DataType, TypeError> {
        let (mut precision, mut scale) = (10, 0);
        if self.take('(') {
            precision = self.number(1, 38)?;
            if self.take(',') {
                scale = self.number(0, precision)?;
            }
            self.need(')')?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "both are at most 38")]
        let (precision, scale) = (precision as u8, scale as u8);
        Ok(DataType::Decimal { precision, scale })
    }

    fn timestamp(&mut self) -> Result<DataType, TypeError> {
        let precision = self.precision(6)?;
        Ok(if self.take_words(&["WITH", "LOCAL", "TIME", "ZONE"]) {
            DataType::TimestampLtz(precision)
        } else if self.take_words(&["WITH", "TIME", "ZONE"]) {
            DataType::TimestampTz(precision)
        } else {
            self.take_words(&["WITHOUT", "TIME", "ZONE"]);
            DataType::Timestamp(precision)
        })
    }

    fn interval(&mut self) -> Result<DataType, TypeError> {
        let unit = self.word();
        self.argument(0, 9, 0)?;
        let data = match unit.as_str() {
            "YEAR" | "MONTH" => DataType::IntervalYearMonth,
            "DAY" | "HOUR" | "MINUTE" | "SECOND" => DataType::IntervalDayTime,
            _ => return Err(self.expected("a unit of an interval")),
        };
        if self.take_words(&["TO"]) {
            let end = self.word();
            let known = match data {
                DataType::IntervalYearMonth => end == "MONTH",
                _ => matches!(end.as_str(), "HOUR" | "MINUTE" | "SECOND"),
            };
            if !known {
                return Err(self.expected("the last unit of an interval"));
            }
            self.argument(0, 9, 0)?;
        }
        Ok(data)
    }

    fn row(&mut self) -> Result<DataType, TypeError> {
        let close = if self.take('<') {
            '>'
        } else if self.take('(') {
            ')'
        } else {
            return Err(self.expected("'<'"));
        };
        let mut fields = Vec::new();
        if self.take(close) {
            return Ok(DataType::Row(fields));
        }
        loop {
            let name = self.name()?;
            let ty = self.ty()?;
            self.comment()?;
            fields.push(Field { name, ty });
            if self.take(close) {
                return Ok(DataType::Row(fields));
            }
            self.need(',')?;
        }
    }

    /// A name, in back quotes (doubled inside) or plain.
    fn name(&mut self) -> Result<String, TypeError> {
        self.space();
        if !self.take('`') {
            let rest = self.rest();
            let end = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'))
                .unwrap_or(rest.len());
            if end == 0 {
                return Err(self.expected("a field's name"));
            }
            self.at += end;
            return Ok(rest[..end].to_owned());
        }
        self.quoted('`')
    }

    /// A field's comment in single quotes, skipped.
    fn comment(&mut self) -> Result<(), TypeError> {
        if self.take('\'') {
            self.quoted('\'')?;
        }
        Ok(())
    }

    /// The rest of a quoted text whose opening quote is taken.
    fn quoted(&mut self, quote: char) -> Result<String, TypeError> {
        let mut text = String::new();
        loop {
            let rest = self.rest();
            let Some(end) = rest.find(quote) else {
                return Err(self.expected(&format!("a closing {quote}")));
            };
            text.push_str(&rest[..end]);
            self.at += end + 1;
            if !self.rest().starts_with(quote) {
                return Ok(text);
            }
            text.push(quote);
            self.at += 1;
        }
    }

    /// The parameters of a type unknown here.
    fn other(&mut self) -> Result<(), TypeError> {
        for (open, close) in [('(', ')'), ('<', '>')] {
            if !self.take(open) {
                continue;
            }
            let mut depth = 1_usize;
            while depth > 0 {
                let Some(next) = self.rest().chars().next() else {
                    return Err(self.expected(&format!("'{close}'")));
                };
                self.at += next.len_utf8();
                if next == '\'' || next == '`' {
                    self.quoted(next)?;
                } else if next == open {
                    depth += 1;
                } else if next == close {
                    depth -= 1;
                }
            }
        }
        Ok(())
    }
}
